"""`block_follower`: an always-on source that keeps hot tables equal to the tip of a chain.

It writes blocks as they come, finds reorgs by parent hash however deep they are, and tells the Dispatcher of every
range that is new (an event) or no longer what it was (an invalidation). Where it stands is kept in the data database,
in the transaction of its rows; so a restart neither loses a block nor writes it twice. See `helpers/follow_chain.py`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from tracelake.domain.dag.catalog import Count, OperatorSpec, checked_by
from tracelake.domain.dag.model import SourceKind, Storage
from tracelake.domain.ranges import MAX_END
from tracelake.operators.api.context import TaskContext
from tracelake.operators.api.runtimes import ON_WORKERS
from tracelake.operators.helpers.chain_tables import ALL, Tables, check_tables


class Config(Tables):
    rpc_pool: str
    """A pool of the settings: addresses and keys of nodes never stand in a DAG."""
    start_block: int | Literal["latest"] = 0
    """Where a source that has written nothing yet begins; from then on that block is its first, for ever."""
    emit_strategy: Literal["per_block", "per_range"] = "per_range"
    """One event for each block, or one for all that were written together."""
    confirmations: int = Field(64, ge=0, le=100_000)
    """Blocks below the tip that are final, on a chain that does not say so itself."""
    batch: int = Field(200, ge=1, le=10_000)
    """Blocks written together while catching up."""
    poll_seconds: float = Field(1.0, ge=0.02, le=3600)

    @field_validator("start_block")
    @classmethod
    def _exists(cls, given: int | str) -> int | str:
        if isinstance(given, int) and given < 0:
            raise ValueError("blocks are numbered from 0; `latest` is the tip")
        if isinstance(given, int) and given > MAX_END:
            raise ValueError(f"blocks are numbered to {MAX_END}; `latest` is the tip")
        return given


SPEC = OperatorSpec(
    checked_by(Config),
    frozenset({ON_WORKERS}),
    source_kinds=frozenset({SourceKind.ALWAYS_ON}),
    reactive=False,
    outputs=Count(1, len(ALL) + 1),
    storages=(Storage.POSTGRES,),
    tuning=("batch", "poll_seconds"),
    check_wiring=lambda config, wired: list(check_tables(config, wired, more=1)),
)
"""One output for each table; one more, if there is, is told the ranges that have become final.

`confirmations` counts: all that a generation was told to be final was so by one rule, on which its readers rely.
"""


def run(ctx: TaskContext[Config]) -> None:
    from tracelake.chain.rpc import run as run_async
    from tracelake.operators.helpers.follow_chain import follow

    run_async(follow(ctx))
