"""`evm_decode`: decodes logs into rows of the events that an ABI declares, one output for each event.

A log that does not match its event (any contract may emit invalid data) has no row, and is counted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, field_validator, model_validator

from tracelake.domain.dag.catalog import (
    SAME,
    ChangedFields,
    Columns,
    ColumnSource,
    ConfigProblem,
    Count,
    ListedAddresses,
    OperatorSpec,
    Wired,
    checked_by,
    every_input,
)
from tracelake.domain.dag.model import Storage
from tracelake.domain.ranges import Range
from tracelake.domain.text.suggest import nearest
from tracelake.errors import InvalidAbi, InvalidRequest
from tracelake.operators.api.context import TaskContext
from tracelake.operators.api.outcome import OperatorConfig, Outcome
from tracelake.operators.api.outputs import Output
from tracelake.operators.api.runtimes import ON_SPARK
from tracelake.operators.helpers.chain_tables import KEYS
from tracelake.operators.helpers.read_logs import read_logs

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

    from tracelake.chain.abi.events import AbiEvent

BUILT_IN = ("erc20", "erc721")
UNDECODED = "undecoded"
"""Logs of an event whose data does not match it."""
OF_NO_EVENT = "of no event"
"""Logs of other events."""


MAX_ADDRESSES = 1_000
Address = Annotated[str, Field(pattern="^0x[0-9A-Fa-f]{40}$")]
"""Of a contract."""


class Config(OperatorConfig):
    abi: str
    """`erc20`, `erc721`, or the ABI as JSON text."""
    events: tuple[str, ...] = Field(min_length=1)
    """Which of its events, in snake case, in the order of the outputs."""
    addresses: tuple[Address, ...] | None = Field(None, min_length=1, max_length=MAX_ADDRESSES)
    """Only logs of these contracts; None: of all."""
    files: int = Field(1, ge=1, le=1000)
    """Per output. One is written by one Spark task, in memory; several by as many tasks as there are cores."""

    @field_validator("events", "addresses", mode="before")
    @classmethod
    def _from_list(cls, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value

    @property
    def contracts(self) -> frozenset[bytes]:
        return frozenset(bytes.fromhex(text[2:]) for text in self.addresses or ())

    @model_validator(mode="before")
    @classmethod
    def _has_no_file(cls, value: Any) -> Any:
        if isinstance(value, Mapping) and "abi_file" in value:
            raise ValueError(
                "abi_file is read where the DAG is deployed from: `trace dag deploy` puts the events of that file"
                " here as `abi`, and this DAG came without them"
            )
        return value


def check_wiring(config: Mapping[str, Any], wired: Wired) -> Sequence[ConfigProblem]:
    """Check at deploy that the ABI has the events, and that each of them has an output."""
    read = Config.model_validate(dict(config))
    try:
        events_of(read)
    except InvalidRequest as refusal:
        return [ConfigProblem(("events",), refusal.message, refusal.hint, "unknown_event")]
    except InvalidAbi as refusal:
        if re.fullmatch(r"\w{0,40}", read.abi):
            hint = nearest(read.abi, BUILT_IN) or f"{', '.join(BUILT_IN)}, or the contract's ABI as JSON"
            return [ConfigProblem(("abi",), f"there is no ABI called {read.abi!r}", hint, refusal.code)]
        hint = refusal.hint or f"abi is one of {', '.join(BUILT_IN)}, or the contract's ABI as JSON"
        return [ConfigProblem(("abi",), f"{refusal.where}: {refusal.message}", hint, refusal.code)]
    if len(read.events) != len(wired.outputs):
        reason = f"{len(read.events)} events cannot become {len(wired.outputs)} outputs"
        return [ConfigProblem(("events",), reason, f"outputs: [{', '.join(read.events)}]", "bad_count")]
    return []


def output_columns(config: Mapping[str, Any], _wired: Wired) -> Sequence[Columns | None]:
    """None for an ABI that the check refuses."""
    try:
        return [event.columns for event in events_of(Config.model_validate(dict(config)))]
    except (InvalidAbi, InvalidRequest):
        return []


def output_keys(config: Mapping[str, Any]) -> Sequence[Sequence[str]]:
    """A log becomes one row."""
    return [KEYS["logs"] for _ in config["events"]]


def column_lineage(config: Mapping[str, Any], wired: Wired) -> Sequence[ColumnSource]:
    """Columns of the log itself are copied, indexed arguments are its topics, the others are in its data."""
    from tracelake.chain.abi.events import BASE_COLUMNS

    sources = []
    for index, event in enumerate(events_of(Config.model_validate(dict(config)))):
        made_from = {name: name for name in BASE_COLUMNS}
        topics = (f"topic{number}" for number in count(1))
        for argument in event.arguments:
            place = next(topics) if argument.indexed else "data"
            made_from |= dict.fromkeys(argument.columns, place)
        sources += [ColumnSource(*pair, index) for pair in _from_each(made_from, wired.inputs)]
    return sources


def _from_each(made_from: Mapping[str, str], inputs: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Every input holds logs."""
    for name in inputs:
        yield from ((column, name, read) for column, read in made_from.items())


def changed_columns(
    former: Mapping[str, Any], new: Mapping[str, Any], inputs: Mapping[str, ChangedFields]
) -> Sequence[ChangedFields]:
    """An event that is declared as before is decoded as before, whatever events there are beside it."""
    former_config, new_config = (Config.model_validate(dict(config)) for config in (former, new))
    if former_config.contracts != new_config.contracts:
        return [None for _ in new_config.events]
    before, after = events_of(former_config), events_of(new_config)
    read = [columns_read(new, [name])[name] for name in inputs]
    if any(changed is None or changed & set(names or ()) for changed, names in zip(inputs.values(), read, strict=True)):
        return [None for _ in after]
    return [SAME if place < len(before) and before[place] == event else None for place, event in enumerate(after)]


def columns_read(_config: Mapping[str, Any], inputs: Sequence[str]) -> Mapping[str, Collection[str] | None]:
    from tracelake.chain.abi.events import READ_COLUMNS

    return dict.fromkeys(inputs, READ_COLUMNS)


def addresses(config: Mapping[str, Any], _inputs: Sequence[str]) -> ListedAddresses | None:
    read = Config.model_validate(dict(config)).contracts
    return ListedAddresses(read, {**config, "addresses": "listed"}) if read else None


def reproduces(_config: Mapping[str, Any], inputs: Sequence[str]) -> bool:
    """Of several inputs, also rows beside the task's range are read: they show of which chain an input is."""
    return len(inputs) == 1


SPEC = OperatorSpec(
    checked_by(Config),
    ON_SPARK,
    inputs=Count(1, None),
    outputs=Count(1, None),
    storages=(Storage.PARQUET,),
    tuning=("files",),
    check_wiring=check_wiring,
    reads=every_input,
    narrows=every_input,
    output_columns=output_columns,
    output_keys=output_keys,
    column_lineage=column_lineage,
    changed_columns=changed_columns,
    columns_read=columns_read,
    reproduces=reproduces,
    addresses=addresses,
)


def run(ctx: TaskContext[Config]) -> Outcome:
    from tracelake.spark.failures import spark_failures

    events = events_of(ctx.config)
    left_out: Counter[str] = Counter()
    for span in ctx.ranges(ctx.outputs[0]):
        with spark_failures("/inputs"):
            logs, outputs = read_logs(ctx, span), list(zip(events, ctx.outputs, strict=True))
            left_out += _decode(_of_contracts(logs, ctx.config.contracts), outputs, span, ctx.config.files)
        ctx.progress(len(span), len(span), "blocks")
    return Outcome(left_out=left_out)


def _of_contracts(logs: DataFrame, contracts: Collection[bytes]) -> DataFrame:
    return logs.where(logs["address"].isin(sorted(contracts))) if contracts else logs


def _decode(logs: DataFrame, events: Sequence[tuple[AbiEvent, Output]], span: Range, files: int) -> Counter[str]:
    """Return how many logs have no row, by reason."""
    from pyspark.sql import Observation, functions

    seen = Observation()
    counts = [functions.count_if(_is_of(logs, event)).alias(str(place)) for place, (event, _) in enumerate(events)]
    # Counted while the logs of the first event are read.
    watched = logs.observe(seen, functions.count(functions.lit(1)).alias("all"), *counts)
    written = [
        output.write(decoded(watched if place == 0 else logs, event), span, files=files)
        for place, (event, output) in enumerate(events)
    ]
    found = seen.get
    matching = sum(found[str(place)] for place in range(len(events)))
    return Counter({UNDECODED: matching - sum(written), OF_NO_EVENT: found["all"] - matching})


def _is_of(logs: DataFrame, event: AbiEvent) -> Column:
    """By its first topic and the number of topics, as in `decode_logs`."""
    from pyspark.sql import functions

    same = logs["topic0"] == functions.lit(event.topic0)
    for place in range(1, 4):
        topic = logs[f"topic{place}"]
        same = same & (topic.isNotNull() if place < event.topics else topic.isNull())
    return same


def events_of(config: Config) -> list[AbiEvent]:
    from tracelake.chain.abi import events as abi

    found = abi.BUILT_IN.get(config.abi)
    named = abi.table_names(found or abi.read_abi(abi.document_of(config.abi)))
    unknown = [name for name in config.events if name not in named]
    if unknown:
        raise InvalidRequest(
            f"the ABI has no event {unknown[0]!r}", where="/config/events", hint=f"it has {', '.join(named)}"
        )
    return [named[name] for name in config.events]


def decoded(logs: DataFrame, event: AbiEvent) -> DataFrame:
    """Decode inside Spark's Python workers, batch by batch."""
    from pyspark.sql.pandas.types import from_arrow_schema

    from tracelake.chain.abi.decode_logs import READ, decode_logs, schema_of

    def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            table = pa.Table.from_batches([batch]).select(READ.names).cast(READ)
            yield from decode_logs(table, event).table.to_batches()

    schema = from_arrow_schema(schema_of(event))
    # Only this event's logs leave the JVM.
    return logs.where(_is_of(logs, event)).mapInArrow(decode, schema)
