"""`cryo_ingest`: a range of blocks, fetched from nodes and checked, becomes one Parquet file set for each table.

Blocks are fetched and written inside Spark's Python workers, some at a time; only the names of files and the hashes at
the edges come back, by which the pieces must link.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import Field

from trace_platform.domain.catalog import Count, OperatorSpec, checked_by
from trace_platform.domain.dag_model import Storage
from trace_platform.domain.ranges import Range, split
from trace_platform.errors import WorkFailed
from trace_platform.operators.chain_tables import ALL, Tables, check_tables, outputs_of, pool_of
from trace_platform.operators.context import TaskContext
from trace_platform.operators.runtimes import ON_WORKERS

if TYPE_CHECKING:
    from trace_platform.chain.rpc_pool import RpcPool
    from trace_platform.spark.parquet_writer import Written


class Config(Tables):
    rpc_pool: str
    """A pool of the settings: addresses and keys of nodes never stand in a DAG."""
    chunk: int = Field(1000, ge=1, le=100_000)
    """Blocks fetched at once by one Spark task, and written to one file of each table."""


SPEC = OperatorSpec(
    checked_by(Config),
    frozenset({ON_WORKERS}),
    inputs=Count(1, 1),
    outputs=Count(1, len(ALL)),
    storages=(Storage.PARQUET,),
    tuning=("chunk",),
    check_wiring=lambda config, wired: list(check_tables(config, wired)),
)


def run(ctx: TaskContext[Config]) -> None:
    outputs = outputs_of(ctx.config.tables, ctx.outputs)
    pool = pool_of(ctx.resources, ctx.config.rpc_pool)
    for span in ctx.ranges(ctx.outputs[0]):
        written = _ingest(ctx, pool, list(split(span, ctx.config.chunk)))
        for table, output in outputs.items():
            output.stage(span, [one for name, one in written if name == table])
        ctx.progress(len(span), len(span), "blocks")


def _ingest(ctx: TaskContext[Config], pool: RpcPool, chunks: Sequence[Range]) -> list[tuple[str, Written]]:
    from trace_platform.spark.parquet_writer import write_ranges

    outputs = outputs_of(ctx.config.tables, ctx.outputs)
    written = write_ranges(
        ctx.session,
        partial(fetch, pool, ctx.config.tables),
        chunks,
        {table: output.place for table, output in outputs.items()},
        {table: table for table in outputs},
    )
    check_links(chunks, {one.part: Edges(*json.loads(one.meta)) for _, one in written})
    return written


def fetch(pool: RpcPool, tables: Sequence[str], span: Range) -> tuple[dict[str, Any], str]:
    """Inside an executor."""
    from trace_platform.chain.fetch import fetch_range_sync

    fetched = fetch_range_sync(pool, *span.edges, tables)
    first, last = (pool.endpoints[place].label for place in (fetched.first_by, fetched.last_by))
    return fetched.tables, Edges(fetched.first_parent_hash.hex(), fetched.last_hash.hex(), first, last).told()


class Edges(NamedTuple):
    """How a chunk meets its neighbours, and which endpoints said so."""

    parent: str
    last: str
    first_by: str
    last_by: str

    def told(self) -> str:
        return json.dumps(self)


def check_links(chunks: Sequence[Range], edges: Mapping[int, Edges]) -> None:
    """Chunks were fetched apart, maybe while the chain moved: each must begin where the one before it ended."""
    for one, following in pairwise(range(len(chunks))):
        before, after = edges[one], edges[following]
        if before.last != after.parent:
            raise WorkFailed(
                f"the chain moved, or a node lies: block {chunks[following].start} of {after.first_by}"
                f" does not follow block {chunks[one].stop - 1} of {before.last_by}",
                where="/scope",
                retryable=True,
            )
