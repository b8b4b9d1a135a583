"""`parquet_compact`: ranges of hot tables become Parquet, and leave the hot tables once that is committed.

What of a range is cold already and was not rewritten since is read from there: a reorg deeper than finality replaces
some blocks of a compacted range, and the rest of it must stay. A compaction first notes what it has read, then writes;
when its commit is seen, the blocks as it read them are marked cold, and after a grace time their rows go.
"""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from pydantic import Field

from trace_platform.contracts import FilesAnswer
from trace_platform.domain.catalog import Count, OperatorSpec, checked_by
from trace_platform.domain.dag_model import Storage
from trace_platform.domain.ranges import Range, format_partition_key, subtract
from trace_platform.errors import InvalidRequest, Unavailable
from trace_platform.operators.chain_tables import ALL, KEYS, Tables, outputs_of
from trace_platform.operators.context import TaskContext
from trace_platform.operators.inputs import Input, read_listed
from trace_platform.operators.outcome import Outcome
from trace_platform.operators.outputs import Output
from trace_platform.operators.runtimes import ON_WORKERS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from trace_platform.spark.hot_tables import HotTable
    from trace_platform.spark.hot_view import HotView


class Config(Tables):
    """Tables are those of the inputs that are hot, in the order of the inputs."""

    delete_after_compact: bool = True
    """Whether rows leave the hot tables when their Parquet is committed."""
    grace_seconds: int = Field(600, ge=0)
    """How long they stay even then, for readers that pinned an older commit."""


SPEC = OperatorSpec(
    checked_by(Config),
    frozenset({ON_WORKERS}),
    inputs=Count(2, len(ALL) + 1),
    outputs=Count(1, len(ALL)),
    storages=(Storage.PARQUET,),
)


def run(ctx: TaskContext[Config]) -> Outcome:
    from trace_platform.spark.hot_view import held, view_of

    finish_earlier(ctx)
    outputs = outputs_of(ctx.config.tables, ctx.outputs)
    for span in ctx.ranges(ctx.outputs[0]):
        # The commit first, then the moment: what was compacted in between is still hot for a reader of that commit.
        cold = {table: ctx.door.files(output.ref.dataset_uuid, span) for table, output in outputs.items()}
        with held(ctx.resources.data_dsn) as moment:
            for table, output in outputs.items():
                hot = hot_of(ctx, table)
                view = view_of(moment, hot, start=span.start, stop=span.stop, commit=cold[table].commit)
                _compact(ctx, view, output, span, cold[table])
        ctx.progress(len(span), len(span), "blocks")
    return Outcome(after_commit=lambda: finish_earlier(ctx))


def _compact(ctx: TaskContext[Config], view: HotView, output: Output, span: Range, there: FilesAnswer) -> None:
    from trace_platform.spark import compactions

    cold = [Range(one.start, one.end + 1) for one in there.partitions if one.start is not None and one.end is not None]
    missing = subtract([span], [*cold, *(Range(run.start, run.stop) for run in view.runs)])
    if missing:
        raise Unavailable(
            f"blocks {', '.join(map(format_partition_key, missing))} are neither hot nor cold yet", where="/scope"
        )
    frame = _rows(ctx, view, read_listed(ctx.spark, ctx.objects, there) if cold else None)
    with closing(_connect(ctx)) as connection:
        compactions.begin(connection, view.table, str(output.folder), span, view.up_to_seq)
    number, *rest = KEYS[_name(ctx, output)]
    output.write(frame.coalesce(1).sortWithinPartitions(number, *rest), span)


def _rows(ctx: TaskContext[Config], view: HotView, cold: DataFrame | None) -> DataFrame:
    from trace_platform.spark.hot_reader import read_hot, read_seam

    if cold is None:
        return read_hot(ctx.spark, ctx.resources.data_dsn, view)
    return read_seam(ctx.spark, ctx.resources.data_dsn, view, cold)


def finish_earlier(ctx: TaskContext[Config]) -> None:
    """Compactions whose commit is there by now, ours or one whose worker died: their blocks are cold from then on."""
    from trace_platform.spark import compactions
    from trace_platform.spark.hot_compaction import mark_compacted, sweep

    with closing(_connect(ctx)) as connection:
        for table, output in outputs_of(ctx.config.tables, ctx.outputs).items():
            hot = hot_of(ctx, table)
            for begun in compactions.begun(connection, hot):
                span = Range(begun.start, begun.stop)
                for part in ctx.door.files(output.ref.dataset_uuid, span).partitions:
                    if part.location == begun.location and (part.start, part.end) == span.edges:
                        mark_compacted(
                            connection,
                            hot,
                            start=span.start,
                            stop=span.stop,
                            up_to_seq=begun.up_to_seq,
                            commit=part.commit,
                        )
                        compactions.end(connection, hot, begun)
            compactions.forget_old(connection, hot)
            if ctx.config.delete_after_compact:
                sweep(connection, hot, timedelta(seconds=ctx.config.grace_seconds))


def hot_of(ctx: TaskContext[Config], table: str) -> HotTable:
    """The hot table behind the input of this table: hot inputs stand in the order of `tables`."""
    from trace_platform.chain.schemas import SCHEMAS
    from trace_platform.spark.hot_tables import HotTable

    tables: list[str] = list(ctx.config.tables)
    ref = dict(zip(tables, _hot_inputs(ctx), strict=False)).get(table)
    if ref is None:
        raise InvalidRequest(
            f"there is no hot input for table {table}",
            where="/inputs",
            hint="name the follower's outputs as inputs with trigger: false, in the order of config.tables",
        )
    found = ref.ref
    return HotTable(found.dataset_uuid, found.dataset_version, ctx.org_id, SCHEMAS[table], KEYS[table])


def _hot_inputs(ctx: TaskContext[Config]) -> list[Input]:
    return [one for one in ctx.inputs if not one.has_files and not one.ref.trigger]


def _name(ctx: TaskContext[Config], output: Output) -> str:
    return str(ctx.config.tables[output.ref.output_index])


def _connect(ctx: TaskContext[Config]) -> Any:
    import psycopg

    return psycopg.connect(ctx.resources.data_dsn, autocommit=True, connect_timeout=10)
