"""`alert_route`: turns alert events into work items of the delivery process, once for each event and channel.

The claim of the task has the alerts and channels of its organisation, by name. A row of any other alert makes no item,
and is counted as left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from tracelake.domain.alerts import COLUMNS, missing_fields
from tracelake.domain.dag.catalog import ConfigProblem, Count, OperatorSpec, Wired, checked_by, every_input
from tracelake.domain.ids import OrgId, delivery_id
from tracelake.errors import InvalidRequest
from tracelake.operators.api.context import TaskContext
from tracelake.operators.api.outcome import OperatorConfig, Outcome
from tracelake.operators.api.runtimes import ON_WORKERS
from tracelake.runtime.crash_points import crash_point
from tracelake.wire.task.lifecycle import AlertRef

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

    from tracelake.data.delivery_items import Item

AT_ONCE: Final = 1_000
STRANGERS: Final = "of alerts that are not defined and enabled here"
NOWHERE: Final = "of alerts without a channel"
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Config(OperatorConfig):
    """There are no options."""


def check_wiring(config: Mapping[str, Any], wired: Wired) -> Sequence[ConfigProblem]:
    del config
    return [
        ConfigProblem(
            (place,),
            f"these are no alert events: {'; '.join(missing_fields(declared))}",
            "take the block of docs/how-to/raise_alerts.md",
            "not_alert_events",
            within="inputs",
        )
        for place, declared in enumerate(wired.read)
        if declared is not None and missing_fields(declared)
    ]


SPEC = OperatorSpec(
    checked_by(Config),
    frozenset({ON_WORKERS}),
    inputs=Count(1, 1),
    outputs=Count(0, 0),
    check_wiring=check_wiring,
    narrows=every_input,
)


def run(ctx: TaskContext[Config]) -> Outcome | None:
    from tracelake.spark.failures import spark_failures

    known = {str(alert.alert_definition_id): alert for alert in ctx.task.alerts}
    left_out = {STRANGERS: 0, NOWHERE: 0}
    with spark_failures("/inputs"):
        rows = _rows(ctx.inputs[0].dataframe(), ctx.inputs[0].name)
        while batch := list(islice(rows, AT_ONCE)):
            _count(batch, known, left_out)
            _store(ctx, list(_items(ctx, batch, known)))
    return Outcome(left_out=left_out)


def _rows(frame: DataFrame, name: str) -> Iterator[Row]:
    """One publish has some megabytes at most; of a whole table, one Spark partition is in memory at a time."""
    missing = [column for column in COLUMNS if column not in frame.columns]
    if missing:
        raise InvalidRequest(f"{name} holds no alert events: it lacks {', '.join(missing)}", where="/inputs")
    # As a number: the conversion of a time to Python depends on the driver's time zone.
    columns = ["unix_micros(event_time) AS event_time" if column == "event_time" else column for column in COLUMNS]
    return iter(frame.selectExpr(*columns).toLocalIterator())


def _count(rows: Sequence[Row], known: Mapping[str, AlertRef], left_out: dict[str, int]) -> None:
    for row in rows:
        alert = known.get(row.alert_definition_id)
        if alert is None:
            left_out[STRANGERS] += 1
        elif not alert.channels:
            left_out[NOWHERE] += 1


def _items(ctx: TaskContext[Config], rows: Sequence[Row], known: Mapping[str, AlertRef]) -> Iterator[Item]:
    for row in rows:
        alert = known.get(row.alert_definition_id)
        if alert is not None:
            yield from (_item(OrgId(ctx.org_id), alert, channel, row) for channel in alert.channels)


def _item(org: OrgId, alert: AlertRef, channel: str, row: Row) -> Item:
    from tracelake.data.delivery_items import Item

    at = EPOCH + timedelta(microseconds=row.event_time)
    event = {name: _plain(row[name]) for name in COLUMNS}
    event |= {"event_time": at.isoformat(), "payload": None if row.payload is None else json.loads(row.payload)}
    return Item(
        delivery_id(org, alert.alert_definition_id, row.dedupe_key, channel),
        alert.alert_definition_id,
        alert.name,
        row.dedupe_key,
        channel,
        row.severity,
        at,
        json.dumps(event),
    )


def _plain(value: Any) -> Any:
    return f"0x{value.hex()}" if isinstance(value, bytes | bytearray) else value


def _store(ctx: TaskContext[Config], items: Sequence[Item]) -> None:
    from tracelake.data.delivery_items import store_items

    if items:
        crash_point("alert_route.before_commit")
        store_items(ctx.resources.data_dsn, ctx.org_id, ctx.task.task_id, items)
        crash_point("alert_route.after_commit")
