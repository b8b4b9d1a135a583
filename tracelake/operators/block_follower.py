"""`block_follower`: an always-on source that keeps hot tables equal to the tip of a chain.

It writes blocks as they come, finds reorgs of any depth by parent hash, and sends the Dispatcher every new range (an
event) and every replaced range (an invalidation). Its progress is stored in data Postgres, in the transaction of its
rows, so a restart neither loses a block nor writes it twice. See `helpers/follow_chain.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field, field_validator

from tracelake.domain.dag.catalog import ConfigPath, Count, OperatorSpec, checked_by
from tracelake.domain.dag.model import DagOutput, SourceKind, Storage
from tracelake.domain.ranges import MAX_END
from tracelake.operators.api.context import TaskContext
from tracelake.operators.api.runtimes import ON_WORKERS
from tracelake.operators.helpers.chain_tables import ALL, Tables, check_tables


class Config(Tables):
    rpc_pool: str
    """A pool of the settings: addresses and keys of nodes are never in a DAG."""
    start_block: int | Literal["latest"] = 0
    """Where a source without blocks starts; from then on that block is its first."""
    emit_strategy: Literal["per_block", "per_range"] = "per_range"
    """One event for each block, or one for all blocks written together."""
    confirmations: int = Field(64, ge=0, le=100_000)
    """How many blocks below the tip are final, on a chain that does not report it."""
    batch: int = Field(200, ge=1, le=10_000)
    """How many blocks are written together while catching up."""
    poll_seconds: float = Field(1.0, ge=0.02, le=3600)

    @field_validator("start_block")
    @classmethod
    def _exists(cls, value: int | str) -> int | str:
        if isinstance(value, int) and value < 0:
            raise ValueError("blocks are numbered from 0; `latest` is the tip")
        if isinstance(value, int) and value > MAX_END:
            raise ValueError(f"blocks are numbered to {MAX_END}; `latest` is the tip")
        return value


def ignored_settings(config: Mapping[str, Any], outputs: Sequence[DagOutput]) -> Mapping[ConfigPath, str]:
    if len(outputs) > len(config.get("tables") or ALL):
        return {}
    return {("confirmations",): " without one more output than there are tables, which gets the ranges that are final"}


SPEC = OperatorSpec(
    checked_by(Config),
    frozenset({ON_WORKERS}),
    source_kinds=frozenset({SourceKind.ALWAYS_ON}),
    reactive=False,
    outputs=Count(1, len(ALL) + 1),
    storages=(Storage.POSTGRES,),
    ignores=ignored_settings,
    tuning=("batch", "poll_seconds"),
    check_wiring=lambda config, wired: list(check_tables(config, wired, more=1)),
)
"""One output for each table; an additional one gets the ranges that became final.

`confirmations` is not a tuning option: readers rely on one rule of finality for a generation.
"""


def run(ctx: TaskContext[Config]) -> None:
    from tracelake.chain.nodes.rpc import run as run_async
    from tracelake.operators.helpers.follow_chain import follow

    run_async(follow(ctx))
