"""`cryo_ingest`: fetches a range of blocks from nodes, checks it and writes it as Parquet, for each table.

Blocks are fetched and written inside Spark's Python workers, in chunks; only the names of files and the hashes at the
edges come back, by which the chunks must link.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import Field

from tracelake.domain.dag.catalog import Count, OperatorSpec, checked_by
from tracelake.domain.dag.model import Storage
from tracelake.domain.ranges import Range, format_partition_key, intersect, split
from tracelake.errors import WorkFailed
from tracelake.operators.api.context import TaskContext
from tracelake.operators.api.outcome import Outcome
from tracelake.operators.api.runtimes import ON_WORKERS
from tracelake.operators.helpers.chain_tables import ALL, Tables, check_tables, outputs_of, pool_of, table_columns

if TYPE_CHECKING:
    from tracelake.chain.nodes.rpc_pool import RpcPool
    from tracelake.data.files.parquet_writer import Written


class Config(Tables):
    rpc_pool: str
    """A pool of the settings: addresses and keys of nodes are never in a DAG."""
    chunk: int = Field(1000, ge=1, le=100_000)
    """How many blocks one Spark task fetches, and writes to one file of each table."""


SPEC = OperatorSpec(
    checked_by(Config),
    frozenset({ON_WORKERS}),
    inputs=Count(1, 1),
    outputs=Count(1, len(ALL)),
    storages=(Storage.PARQUET,),
    tuning=("chunk",),
    check_wiring=lambda config, wired: list(check_tables(config, wired)),
    output_columns=table_columns,
)


def run(ctx: TaskContext[Config]) -> Outcome:
    outputs = outputs_of(ctx.config.tables, ctx.outputs)
    pool = pool_of(ctx.resources, ctx.config.rpc_pool)
    spans, final = ctx.ranges(ctx.outputs[0]), None
    for span in spans:
        chunks = list(split(span, ctx.config.chunk))
        # One call, with the highest block of all: is it final?
        written, final = _ingest(ctx, pool, chunks, chunks[-1] if span == spans[-1] else None)
        for table, output in outputs.items():
            output.stage(span, [number for name, number in written if name == table])
        ctx.progress(len(span), len(span), "blocks")
    return Outcome(message=_not_final(spans, final))


def _not_final(spans: Sequence[Range], final: int | None) -> str:
    """Return a message for users; empty if all blocks are final or the chain does not report it."""
    if final is None or final >= spans[-1].edges[1]:
        return ""
    above = intersect(spans, [Range(final + 1, spans[-1].stop)])
    ranges = ", ".join(format_partition_key(span) for span in above)
    return f"not final yet: blocks {ranges}; if a reorg replaces them, what was read stays"


def _ingest(
    ctx: TaskContext[Config], pool: RpcPool, chunks: Sequence[Range], last: Range | None
) -> tuple[list[tuple[str, Written]], int | None]:
    """Return what was written, and the chain's last final block as of the chunk `last`."""
    from tracelake.data.files.parquet_writer import write_ranges

    outputs = outputs_of(ctx.config.tables, ctx.outputs)
    written = write_ranges(
        ctx.session,
        partial(fetch, pool, ctx.config.tables, last=last),
        chunks,
        {table: output.place for table, output in outputs.items()},
        {table: table for table in outputs},
    )
    edges = {number.part: Edges(*json.loads(number.meta)) for _, number in written}
    check_links(chunks, edges)
    return written, edges[len(chunks) - 1].final


def fetch(
    pool: RpcPool, tables: Sequence[str], span: Range, *, last: Range | None = None
) -> tuple[dict[str, Any], str]:
    """Called inside an executor."""
    from tracelake.chain.fetch import fetch_range_sync

    fetched = fetch_range_sync(pool, *span.edges, tables, ask_finalized=span == last)
    first_by, last_by = (pool.endpoints[place].label for place in (fetched.first_by, fetched.last_by))
    hashes = fetched.first_parent_hash.hex(), fetched.last_hash.hex()
    return fetched.tables, Edges(*hashes, first_by, last_by, fetched.finalized).as_json()


class Edges(NamedTuple):
    """The edges of a chunk, and which endpoints reported them."""

    parent: str
    last: str
    first_by: str
    last_by: str
    final: int | None = None
    """The chain's last final block, if it was requested."""

    def as_json(self) -> str:
        return json.dumps(self)


def check_links(chunks: Sequence[Range], edges: Mapping[int, Edges]) -> None:
    """Check that each chunk begins where the one before ended: the chain may have moved between the fetches."""
    for number, following in pairwise(range(len(chunks))):
        before, after = edges[number], edges[following]
        if before.last != after.parent:
            raise WorkFailed(
                f"the chain moved, or a node lies: block {chunks[following].start} of {after.first_by}"
                f" does not follow block {chunks[number].stop - 1} of {before.last_by}",
                where="/scope",
                retryable=True,
            )
