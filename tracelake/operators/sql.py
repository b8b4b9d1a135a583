"""`sql`: makes a dataset by a SELECT over the inputs, named as in the DAG: per partition, per update, or in full."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import Field

from tracelake.domain.access.storage_locations import is_buffered
from tracelake.domain.dag.catalog import (
    ChangedFields,
    Columns,
    ColumnSource,
    ConfigProblem,
    ListedAddresses,
    OperatorSpec,
    Wired,
    checked_by,
    files_of_tables,
)
from tracelake.domain.dag.model import Storage
from tracelake.domain.event import LabelScope, RangeScope
from tracelake.domain.ranges import Range
from tracelake.errors import InvalidRequest, InvalidSql
from tracelake.operators.api.context import TaskContext
from tracelake.operators.api.inputs import WHOLE, needed_frames
from tracelake.operators.api.outcome import OperatorConfig, Outcome, describe, in_full
from tracelake.operators.api.outputs import Output
from tracelake.operators.api.runtimes import ON_SPARK

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tracelake.domain.sql.gate import CheckedSql


MADE_FROM: Final = "made_from"


class Config(OperatorConfig):
    query: str = Field(min_length=1)
    mode: Literal["partition", "update", "full"] = "partition"
    files: int = Field(default=1, ge=1, le=1000)


def check_wiring(config: Mapping[str, Any], wired: Wired) -> Sequence[ConfigProblem]:
    """Check at deploy: the query is accepted, and its tables and columns exist."""
    from tracelake.domain.sql.columns import check_columns

    try:
        check_columns(checked(config["query"], wired.inputs), dict(zip(wired.inputs, wired.columns, strict=False)))
    except InvalidSql as refusal:
        place = f"{refusal.where} of the query: " if refusal.where else ""
        return [ConfigProblem(("query",), f"{place}{refusal.message}", refusal.hint, refusal.reason)]
    return []


def output_columns(config: Mapping[str, Any], wired: Wired) -> Sequence[Columns | None]:
    """None for a query that the check refuses."""
    from tracelake.domain.sql.columns import result_columns

    try:
        query = checked(config["query"], wired.inputs)
        return [result_columns(query, dict(zip(wired.inputs, wired.columns, strict=False)))]
    except InvalidSql:
        return [None]


def column_lineage(config: Mapping[str, Any], wired: Wired) -> Sequence[ColumnSource]:
    from tracelake.domain.sql import lineage

    return lineage.column_lineage(checked(config["query"], wired.inputs))


def tables_read(config: Mapping[str, Any], inputs: Sequence[str]) -> Collection[str]:
    return checked(config["query"], inputs).tables


def canonical(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Without comments, line breaks and the case of keywords. What does not parse stays as it is."""
    from sqlglot.errors import SqlglotError

    from tracelake.domain.sql.dialect import parse, render

    try:
        return {**config, "query": ";".join(render(tree) for tree in parse(config["query"]))}
    except SqlglotError:
        return config


def columns_read(config: Mapping[str, Any], inputs: Sequence[str]) -> Mapping[str, Collection[str] | None]:
    from tracelake.domain.sql import columns_read as by_name

    return dict.fromkeys(inputs, by_name.columns_read(checked(config["query"], inputs)))


def changed_columns(
    former: Mapping[str, Any], new: Mapping[str, Any], inputs: Mapping[str, ChangedFields]
) -> Sequence[ChangedFields]:
    from tracelake.domain.sql import changed_columns as by_name

    if {**former, "query": ""} != {**new, "query": ""}:
        return [None]
    before, after = (checked(config["query"], list(inputs)) for config in (former, new))
    return [by_name.changed_columns(before, after, inputs)]


def addresses(config: Mapping[str, Any], inputs: Sequence[str]) -> ListedAddresses | None:
    from tracelake.domain.sql.dialect import render
    from tracelake.domain.sql.listed_addresses import listed_addresses

    found = listed_addresses(checked(config["query"], inputs))
    return None if found is None else ListedAddresses(found[0], {**config, "query": render(found[1])})


def reproduces(config: Mapping[str, Any], inputs: Sequence[str]) -> bool:
    """Without a clock, chance, or the name of the user who asks."""
    return checked(config["query"], inputs).lasting


SPEC = OperatorSpec(
    checked_by(Config),
    ON_SPARK,
    canonical=canonical,
    storages=(Storage.PARQUET, Storage.BUFFERED),
    ignores=files_of_tables,
    check_wiring=check_wiring,
    reads=tables_read,
    narrows=tables_read,
    output_columns=output_columns,
    column_lineage=column_lineage,
    changed_columns=changed_columns,
    columns_read=columns_read,
    makes_whole=in_full,
    reproduces=reproduces,
    addresses=addresses,
)


def run(ctx: TaskContext[Config]) -> Outcome | None:
    from tracelake.spark.failures import spark_failures

    pins = _pins(ctx)
    if pins and ctx.state.get(MADE_FROM) == pins and ctx.task.invalidation_id is None:
        return Outcome(message="nothing to do: it was made from these commits of its inputs already")
    query = checked(ctx.config.query, [item.name for item in ctx.inputs])
    (output,) = ctx.outputs
    with spark_failures("/config/query"):
        for part in _parts(ctx, output):
            output.write(_result(ctx, query, part), part, files=ctx.config.files)
    return Outcome(state={MADE_FROM: pins}) if pins else None


def _pins(ctx: TaskContext[Config]) -> dict[str, Any] | None:
    """Return the commits that a whole result is made from, if they determine it: the same SELECT gives the same rows.

    Updates come faster than a large whole is made. The first task after them reads the latest commits, and those that
    waited behind it have nothing to do. The commits are stored with the output's commit, so they always match it.
    """
    if ctx.config.mode != "full" or any(is_buffered(item.storage_location) for item in ctx.task.outputs):
        return None
    if any(item.commit is None for item in ctx.task.inputs):
        return None
    (output,) = ctx.task.outputs
    inputs = [[str(item.dataset_uuid), str(item.dataset_version), item.commit] for item in ctx.task.inputs]
    return {"inputs": inputs, "output": str(output.dataset_version)}


def checked(query: str, inputs: Sequence[str]) -> CheckedSql:
    from tracelake.domain.sql.gate import check_sql
    from tracelake.domain.sql.lineage import refuse_repeated_columns, unnamed_columns

    checked_query = check_sql(query, inputs, bounded=False)
    for number in unnamed_columns(checked_query):
        raise InvalidSql(f"column {number} of the result has no name", hint="name it: expression AS name")
    refuse_repeated_columns(checked_query)
    return checked_query


def _parts(ctx: TaskContext[Config], output: Output) -> Sequence[Range | str]:
    """Return the partitions that this task makes."""
    if ctx.config.mode == "full":
        return (WHOLE,)
    if ctx.config.mode == "partition" and not isinstance(ctx.scope, RangeScope | LabelScope):
        raise InvalidRequest(
            f"a partition is needed, and this is {describe(ctx.scope)}", where="/scope", hint="use mode: update or full"
        )
    return ctx.parts(output)


def _result(ctx: TaskContext[Config], query: CheckedSql, part: Range | str) -> DataFrame:
    from tracelake.spark.plan_check import select

    full = ctx.config.mode == "full"
    inputs = [item for item in ctx.inputs if item.name in query.tables]
    read = {item.name: item.selected_for(part, full=full) for item in inputs}
    return select(ctx.spark, query, needed_frames(query, read), without_plans=True)
