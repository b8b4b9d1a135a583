"""`parquet_compact`: copies ranges of hot tables to Parquet, and deletes them from the hot tables after the commit.

Blocks of a range that are cold and were not rewritten since are read from Parquet: a reorg deeper than finality
replaces some blocks of a compacted range, and the others must stay. A compaction first records what it has read, then
writes; when its commit is seen, the blocks as it read them are marked cold, and after a grace period their rows are
deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from pydantic import Field

from tracelake.domain.access.object_names import Folder
from tracelake.domain.dag.catalog import ColumnSource, ConfigPath, ConfigProblem, Count, OperatorSpec, Wired, checked_by
from tracelake.domain.dag.model import DagOutput, Storage
from tracelake.domain.ranges import Range, format_partition_key, parse_partition_key, split, subtract
from tracelake.errors import InvalidRequest, Unavailable
from tracelake.operators.api.context import TaskContext
from tracelake.operators.api.inputs import Input
from tracelake.operators.api.outcome import Outcome
from tracelake.operators.api.outputs import Output
from tracelake.operators.api.runtimes import ON_WORKERS
from tracelake.operators.helpers.chain_tables import (
    ALL,
    KEYS,
    Tables,
    check_tables,
    outputs_of,
    table_columns,
    table_keys,
)
from tracelake.ports import ObjectStore
from tracelake.runtime.crash_points import crash_point
from tracelake.wire.task.outputs import FilesAnswer

if TYPE_CHECKING:
    import pyarrow as pa

    from tracelake.data.hot.compactions import Begun
    from tracelake.data.hot.read_with_cold import ColdFile
    from tracelake.data.hot.tables import HotTable
    from tracelake.data.hot.view import HeldSnapshot, HotView
    from tracelake.data.postgres.secret_dsn import SecretDsn


HINT: Final = "name the follower's outputs as inputs with trigger: false, in the order of config.tables"


class Config(Tables):
    """The tables of the hot inputs, in the order of the inputs."""

    delete_after_compact: bool = True
    """Whether rows are deleted from the hot tables when their Parquet is committed."""
    grace_seconds: int = Field(600, ge=0, le=10 * 365 * 86_400)
    """How long they stay, for readers that pinned an older commit."""
    chunk: int = Field(1000, ge=1, le=100_000)
    """How many blocks one Spark task reads, and writes to one file of each table."""


def check_wiring(config: Mapping[str, Any], wired: Wired) -> Sequence[ConfigProblem]:
    tables = tuple(config.get("tables") or ALL)
    problems = list(check_tables(config, wired))
    if len(wired.inputs) <= len(tables):
        reason = f"{len(tables)} hot tables and the input with the ranges need {len(tables) + 1} inputs"
        problems.append(ConfigProblem(("tables",), f"{reason}, and the job has {len(wired.inputs)}", HINT, "bad_count"))
    named = [name for name in wired.inputs if name in tables]
    in_order = [table for table in tables if table in named]
    if named != in_order:
        reason = (
            f"inputs {', '.join(named)} are the hot tables {', '.join(in_order)}: inputs must be in the order of tables"
        )
        problems.append(ConfigProblem(("tables",), reason, HINT, "bad_order"))
    return problems


def ignored_settings(config: Mapping[str, Any], _outputs: Sequence[DagOutput]) -> Mapping[ConfigPath, str]:
    if config.get("delete_after_compact", True):
        return {}
    return {("grace_seconds",): " with delete_after_compact: false: no rows are deleted"}


def column_lineage(config: Mapping[str, Any], wired: Wired) -> Sequence[ColumnSource]:
    """Each table is copied. Of an input with another name than its table, this is known only when it is read."""
    tables = tuple(config.get("tables") or ALL)
    return [
        ColumnSource(column, table, column, index)
        for index, (table, columns) in enumerate(zip(tables, table_columns(config, wired), strict=True))
        if table in wired.inputs
        for column in columns or ()
    ]


SPEC = OperatorSpec(
    checked_by(Config),
    frozenset({ON_WORKERS}),
    inputs=Count(2, len(ALL) + 2),
    outputs=Count(1, len(ALL)),
    storages=(Storage.PARQUET,),
    tuning=("chunk", "delete_after_compact", "grace_seconds"),
    ignores=ignored_settings,
    check_wiring=check_wiring,
    output_columns=table_columns,
    output_keys=table_keys,
    column_lineage=column_lineage,
)


def run(ctx: TaskContext[Config]) -> Outcome:
    finish_earlier(ctx)
    for span in ctx.ranges(ctx.outputs[0]):
        _compact(ctx, span)
        ctx.progress(len(span), len(span), "blocks")
    return Outcome(after_commit=lambda commits: finish_own(ctx, commits))


def _compact(ctx: TaskContext[Config], span: Range) -> None:
    """Read all tables in one snapshot and write them, inside Spark's Python workers, in chunks."""
    from tracelake.data.files.parquet_writer import write_ranges
    from tracelake.data.hot.view import held
    from tracelake.data.postgres.secret_dsn import SecretDsn

    outputs = outputs_of(ctx.config.tables, ctx.outputs)
    # The commit first, then the snapshot: blocks compacted in between are still hot for a reader of that commit.
    cold = {table: _cold(ctx, table, output, span) for table, output in outputs.items()}
    with held(ctx.resources.data_dsn) as moment:
        sides = {table: _sides(ctx, moment, table, span, cold[table]) for table in outputs}
        _note(ctx, span, [(output, sides[table].view) for table, output in outputs.items()])
        crash_point("parquet_compact.begun")
        written = write_ranges(
            ctx.session,
            partial(pull, SecretDsn(ctx.resources.data_dsn), ctx.objects, sides),
            list(split(span, ctx.config.chunk)),
            {table: output.place for table, output in outputs.items()},
            {table: output.stem for table, output in outputs.items()},
        )
    for table, output in outputs.items():
        # Hot rows are read after the claim: another compaction may have read later ones, committed and swept meanwhile.
        output.stage(span, [item for name, item in written if name == table], over=cold[table].commit)
    crash_point("parquet_compact.written")


def _cold(ctx: TaskContext[Config], table: str, output: Output, span: Range) -> FilesAnswer:
    """The cold files of the hot input: former generations of the output may have some, before the job was changed."""
    found = ctx.api.files(hot_of(ctx, table).dataset_uuid, span)
    # A compaction of another DAG's tables is not known to be their cold side: only its own files count.
    return found if found.commit else ctx.api.files(output.ref.dataset_uuid, span)


@dataclass(frozen=True)
class Sides:
    """Where the rows of one table are; sent to the executors."""

    view: HotView
    cold: tuple[ColdFile, ...]


def pull(
    dsn: SecretDsn, objects: ObjectStore, sides: Mapping[str, Sides], span: Range
) -> tuple[dict[str, pa.Table], str]:
    """Called inside an executor."""
    from tracelake.data.hot.read_with_cold import pull_with_cold

    return {table: pull_with_cold(dsn, objects, side.view, side.cold, span) for table, side in sides.items()}, ""


def _sides(ctx: TaskContext[Config], moment: HeldSnapshot, table: str, span: Range, listing: FilesAnswer) -> Sides:
    from tracelake.data.hot.view import view_of

    hot = hot_of(ctx, table)
    _refuse_another_table(moment, hot, table)
    view = view_of(moment, hot, start=span.start, stop=span.stop, commit=listing.commit)
    cold = tuple(_cold_files(listing))
    missing = subtract(
        [span],
        [*(element for item in cold for element in item.spans), *(Range(run.start, run.stop) for run in view.runs)],
    )
    if missing:
        raise Unavailable(
            f"blocks {', '.join(map(format_partition_key, missing))} are neither hot nor cold yet", where="/scope"
        )
    return Sides(view, cold)


def _refuse_another_table(moment: HeldSnapshot, hot: HotTable, table: str) -> None:
    """Check each hot input by its key: inputs may have any names, but the keys of a chain's tables differ."""
    from tracelake.data.hot.tables import registered

    found = registered(moment.connection, hot.org_id, hot.dataset_version)
    if found is not None and found.unique_key != hot.unique_key:
        known_by = ", ".join(found.unique_key)
        raise InvalidRequest(
            f"the hot input for table {table} holds rows known by {known_by}", where="/inputs", hint=HINT
        )


def _cold_files(listing: FilesAnswer) -> Iterator[ColdFile]:
    from tracelake.data.current_partitions import current_partitions
    from tracelake.data.hot.read_with_cold import ColdFile

    for part, left in current_partitions(
        [partition for partition in listing.partitions if partition.start is not None and partition.end is not None]
    ):
        spans = left or (parse_partition_key(part.partition_key),)
        for file in part.files:
            yield ColdFile(Folder.parse(part.location).object(str(file["name"])), spans)


def _note(ctx: TaskContext[Config], span: Range, read: Sequence[tuple[Output, HotView]]) -> None:
    from tracelake.data.hot import compactions

    with closing(_connect(ctx)) as connection:
        for output, view in read:
            compactions.claim(connection, view.table, output.ref.dataset_uuid)
            compactions.begin(connection, view.table, str(output.folder), span, view.up_to_seq)


def finish_earlier(ctx: TaskContext[Config]) -> None:
    """Finish compactions of others whose commit exists, but whose worker ended before it marked them."""
    outputs = outputs_of(ctx.config.tables, ctx.outputs)

    def commit_of(table: str, begun: Begun) -> int | None:
        span = Range(begun.start, begun.stop)
        for part in _cold(ctx, table, outputs[table], span).partitions:
            if part.location == begun.location and (part.start, part.end) == span.edges:
                return part.commit
        return None

    _finish(ctx, commit_of)


def finish_own(ctx: TaskContext[Config], commits: Mapping[UUID, int]) -> None:
    """Finish our own: the attempt is over, and the Dispatcher has returned the commit of each dataset.

    Of several ranges some may have been outdated and are not in it. Then the next compaction finds out which ones are.
    """
    outputs = outputs_of(ctx.config.tables, ctx.outputs)

    def commit_of(table: str, begun: Begun) -> int | None:
        output = outputs[table]
        own = begun.location == str(output.folder) and len(output.staged) == 1
        return commits.get(output.ref.dataset_uuid) if own else None

    _finish(ctx, commit_of)


def _finish(ctx: TaskContext[Config], commit_of: Callable[[str, Begun], int | None]) -> None:
    """Mark committed blocks as cold."""
    from tracelake.data.hot import compactions
    from tracelake.data.hot.sweep import mark_compacted, sweep

    with closing(_connect(ctx)) as connection:
        for table in ctx.config.tables:
            hot = hot_of(ctx, table)
            for begun in compactions.begun(connection, hot):
                if (commit := commit_of(table, begun)) is not None:
                    mark_compacted(
                        connection,
                        hot,
                        start=begun.start,
                        stop=begun.stop,
                        up_to_seq=begun.up_to_seq,
                        commit=commit,
                    )
                    crash_point("parquet_compact.marked")
                    compactions.end(connection, hot, begun)
            compactions.delete_old(connection, hot)
            if ctx.config.delete_after_compact:
                swept = sweep(connection, hot, timedelta(seconds=ctx.config.grace_seconds))
                crash_point("parquet_compact.swept", when=swept)


def hot_of(ctx: TaskContext[Config], table: str) -> HotTable:
    """Return the hot table of the input of this table: hot inputs are in the order of `tables`."""
    from tracelake.chain.schemas import SCHEMAS
    from tracelake.data.hot.tables import HotTable

    tables: list[str] = list(ctx.config.tables)
    ref = dict(zip(tables, _hot_inputs(ctx), strict=False)).get(table)
    if ref is None:
        raise InvalidRequest(
            f"there is no hot input for table {table}",
            where="/inputs",
            hint=HINT,
        )
    found = ref.ref
    return HotTable(found.dataset_uuid, found.dataset_version, ctx.org_id, SCHEMAS[table], KEYS[table])


def _hot_inputs(ctx: TaskContext[Config]) -> list[Input]:
    return [item for item in ctx.inputs if not item.has_files and not item.ref.trigger]


def _connect(ctx: TaskContext[Config]) -> Any:
    import psycopg

    return psycopg.connect(ctx.resources.data_dsn, autocommit=True, connect_timeout=10)
