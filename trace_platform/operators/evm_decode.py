"""`evm_decode`: logs become rows of the events that an ABI declares, one output for each event.

A log that is not what its event says (anybody may write a contract that emits nonsense) has no row.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field, field_validator, model_validator

from trace_platform.domain.catalog import Count, OperatorSpec, checked_by
from trace_platform.domain.dag_model import Storage
from trace_platform.domain.ranges import Range
from trace_platform.errors import InvalidRequest
from trace_platform.operators.context import TaskContext
from trace_platform.operators.outcome import Settings
from trace_platform.operators.runtimes import ON_WORKERS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from trace_platform.chain.abi import Event

BUILT_IN = ("erc20", "erc721")


class Config(Settings):
    abi: str
    """`erc20`, `erc721`, or the ABI itself as JSON text."""
    events: tuple[str, ...] = Field(min_length=1)
    """Which of its events, in snake case, in the order of the outputs."""

    @field_validator("events", mode="before")
    @classmethod
    def _from_list(cls, given: Any) -> Any:
        return tuple(given) if isinstance(given, list) else given

    @model_validator(mode="after")
    def _is_json(self) -> Self:
        if self.abi not in BUILT_IN:
            try:
                json.loads(self.abi)
            except ValueError:
                raise ValueError(f"abi is one of {', '.join(BUILT_IN)}, or JSON text") from None
        return self


SPEC = OperatorSpec(
    checked_by(Config),
    frozenset({ON_WORKERS}),
    inputs=Count(1, None),
    outputs=Count(1, None),
    storages=(Storage.PARQUET,),
)


def run(ctx: TaskContext[Config]) -> None:
    events = events_of(ctx.config)
    if len(events) != len(ctx.outputs):
        raise InvalidRequest(
            f"{len(events)} events cannot become {len(ctx.outputs)} outputs",
            where="/outputs",
            hint="one for each event",
        )
    for span in ctx.ranges(ctx.outputs[0]):
        logs = _logs(ctx, span)
        for event, output in zip(events, ctx.outputs, strict=True):
            output.write(decoded(logs, event), span)
        ctx.progress(len(span), len(span), "blocks")


def events_of(config: Config) -> list[Event]:
    from trace_platform.chain import abi

    found = abi.BUILT_IN.get(config.abi)
    named = abi.table_names(found or abi.read_abi(json.loads(config.abi)))
    unknown = [name for name in config.events if name not in named]
    if unknown:
        raise InvalidRequest(
            f"the ABI has no event {unknown[0]!r}", where="/config/events", hint=f"it has {', '.join(named)}"
        )
    return [named[name] for name in config.events]


def decoded(logs: DataFrame, event: Event) -> DataFrame:
    """Inside Spark's Python workers, a batch at a time."""
    from pyspark.sql import functions
    from pyspark.sql.pandas.types import from_arrow_schema

    from trace_platform.chain.decode_logs import decode_logs, schema_of
    from trace_platform.chain.schemas import LOGS

    wanted = list(LOGS.names)

    def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            table = pa.Table.from_batches([batch]).select(wanted).cast(LOGS)
            yield from decode_logs(table, event).table.to_batches()

    schema = from_arrow_schema(schema_of(event))
    # Only this event's logs leave the JVM.
    mine = logs.where(logs["topic0"].isin(functions.lit(event.topic0)))
    return mine.mapInArrow(decode, schema)


def _logs(ctx: TaskContext[Config], span: Range) -> DataFrame:
    """Of every input that has some of the range: a backfill and a compaction may share it."""
    frames = [one.dataframe(span) for one in ctx.inputs if one.ref.trigger] or [ctx.inputs[0].dataframe(span)]
    whole = frames[0]
    for other in frames[1:]:
        whole = whole.unionByName(other)
    return whole
