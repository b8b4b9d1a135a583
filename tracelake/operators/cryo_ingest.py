"""`cryo_ingest`: fetches a range of blocks from nodes, checks it and writes it as Parquet, for each table.

Blocks are fetched and written inside Spark's Python workers, in chunks; only the names of files and the hashes at the
edges come back, by which the chunks must link.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pydantic import Field

from tracelake.domain.dag.catalog import ConfigProblem, Count, OperatorSpec, Wired, checked_by
from tracelake.domain.dag.model import FIRED, Storage
from tracelake.domain.event import RangeScope
from tracelake.domain.ranges import MAX_END, Range, format_partition_key, inclusive, intersect, split
from tracelake.errors import WorkFailed
from tracelake.operators.api.context import TaskContext
from tracelake.operators.api.outcome import Outcome
from tracelake.operators.api.runtimes import ON_WORKERS
from tracelake.operators.helpers.chain_tables import (
    ALL,
    Tables,
    check_tables,
    outputs_of,
    pool_of,
    table_columns,
    table_keys,
)

if TYPE_CHECKING:
    from tracelake.chain.nodes.rpc_pool import RpcPool
    from tracelake.data.files.parquet_writer import Written


NEXT_BLOCK: Final = "next_block"


class Config(Tables):
    rpc_pool: str
    """A pool of the settings: addresses and keys of nodes are never in a DAG."""
    chunk: int = Field(1000, ge=1, le=100_000)
    """How many blocks one Spark task fetches, and writes to one file of each table."""
    follow_from: int | None = Field(None, ge=0, le=MAX_END)
    """As a source: the first block. Each fire goes on where the last one ended, up to the last final block."""
    max_blocks: int = Field(10_000, ge=1, le=1_000_000)
    """As a source: at most so many in one fire."""


def check_wiring(config: Mapping[str, Any], wired: Wired) -> Sequence[ConfigProblem]:
    return [*check_tables(config, wired), *_check_follow(config, wired)]


def _check_follow(config: Mapping[str, Any], wired: Wired) -> Iterator[ConfigProblem]:
    """As a source it must know where to begin; with an input, events say which range."""
    if not wired.inputs and "follow_from" not in config:
        reason = "a source needs the first block to read: nothing else says which range"
        yield ConfigProblem(("follow_from",), reason, "follow_from: 0", "missing")
    for name in ("follow_from", "max_blocks"):
        if wired.inputs and name in config:
            reason = f"`{name}` means nothing with an input, whose events say which range"
            yield ConfigProblem((name,), reason, "remove it", "not_for_this")


SPEC = OperatorSpec(
    checked_by(Config),
    frozenset({ON_WORKERS}),
    source_kinds=FIRED,
    inputs=Count(1, 1),
    outputs=Count(1, len(ALL)),
    storages=(Storage.PARQUET,),
    tuning=("chunk", "max_blocks"),
    check_wiring=check_wiring,
    output_columns=table_columns,
    output_keys=table_keys,
)


def run(ctx: TaskContext[Config]) -> Outcome:
    pool = pool_of(ctx.resources, ctx.config.rpc_pool)
    if ctx.config.follow_from is None or isinstance(ctx.scope, RangeScope):
        return _ingest_ranges(ctx, pool, ctx.ranges(ctx.outputs[0]))
    first = int(ctx.state.get(NEXT_BLOCK, ctx.config.follow_from))
    last = min(_last_final(pool, ctx.config.rpc_pool), first + ctx.config.max_blocks - 1)
    if last < first:
        return Outcome(message=f"nothing to do: block {first} is not final yet")
    done = _ingest_ranges(ctx, pool, (inclusive(first, last),))
    return replace(done, state={NEXT_BLOCK: last + 1})


def _last_final(pool: RpcPool, name: str) -> int:
    from tracelake.chain.fetch import last_final_sync

    number = last_final_sync(pool)
    if number is None:
        raise WorkFailed(
            f"the chain of pool {name} does not say which blocks are final",
            where="/config/follow_from",
            hint="follow it with block_follower, which counts confirmations",
        )
    return number


def _ingest_ranges(ctx: TaskContext[Config], pool: RpcPool, spans: Sequence[Range]) -> Outcome:
    outputs, final = outputs_of(ctx.config.tables, ctx.outputs), None
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
