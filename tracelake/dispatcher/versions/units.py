"""The units of a generation, in order: its current partitions, and its events that no partition shows.

A unit is what one event is about: a partition at a commit, one publish of a buffered dataset, a cursor, or an update of
the whole dataset. For each unit that a job has not processed it needs a task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from tracelake.dispatcher.events.new_events import transposed
from tracelake.domain.ranges import Range
from tracelake.store.queries import Queryable, Row, fetch_rows, find_row, queries

BEGIN: Final = datetime.min.replace(tzinfo=UTC)
PARTITIONS: Final = "partitions"
EVENTS: Final = "events"


class Unit(Row, frozen=True):
    kind: str
    partition_key: str | None
    start: int | None
    stop: int | None
    cursor_value: int | None
    commit_number: int | None
    event_id: UUID | None
    created_at: datetime | None

    @property
    def span(self) -> Range | None:
        return None if self.start is None or self.stop is None else Range(self.start, self.stop)

    @property
    def values(self) -> tuple[Any, ...]:
        scope = self.kind, self.partition_key, self.start, self.stop, self.cursor_value
        return *scope, self.commit_number, self.event_id, self.created_at


class ListedEvent(Row, frozen=True):
    kind: str
    partition_key: str | None
    start: int | None
    stop: int | None
    cursor_value: int | None
    commit_number: int | None
    event_id: UUID
    created_at: datetime
    counts: bool
    """False: it is of another generation, or a partition shows it."""


@dataclass(frozen=True)
class Place:
    """How far a pass over the units of a generation has come."""

    stage: str = PARTITIONS
    after_start: int = -2
    after_key: str = ""
    after_time: datetime = BEGIN
    after_event: UUID = field(default=UUID(int=0))


FROM_THE_END: Final = Place(after_start=2**63 - 1)


@dataclass(frozen=True)
class UnitPage:
    units: Sequence[Unit]
    place: Place | None
    """Where the next page begins; None: there is none."""


async def list_units(
    database: Queryable,
    dataset: UUID,
    version: UUID,
    place: Place,
    limit: int,
    *,
    within: Range | None = None,
    newest: bool = False,
) -> UnitPage:
    """The next units, of at most `limit` partitions or events; `within`: only those that overlap these blocks.

    With `newest` partitions come from the last block to the first; events, which have no such order, do not.
    """
    if place.stage == PARTITIONS:
        return await _list_partitions(database, version, place, limit, within=within, newest=newest)
    page = await _list_events(database, dataset, version, place, limit)
    return page if within is None else UnitPage([unit for unit in page.units if _overlaps(unit, within)], page.place)


async def last_unit(database: Queryable, dataset: UUID, version: UUID) -> Sequence[Unit]:
    """The last unit of the generation: a job that makes its whole output anew must have read it, and with it all."""
    sql = queries("catch_up")
    commit = await find_row(database, sql["last_commit"], Unit, dataset, version)
    last = commit or await find_row(database, sql["last_event"], Unit, dataset, version)
    return [last] if last else []


def columns(units: Sequence[Unit]) -> list[list[Any]]:
    """Units as columns, for `unnest`."""
    return transposed([unit.values for unit in units], 8)


async def _list_partitions(
    database: Queryable, version: UUID, place: Place, limit: int, *, within: Range | None, newest: bool
) -> UnitPage:
    bounds = (within.start, within.stop) if within else (None, None)
    values, sql = (version, place.after_start, place.after_key, limit, *bounds), queries("catch_up")
    if newest:
        units = await fetch_rows(database, sql["list_partitions_newest"], Unit, *values)
    else:
        units = await fetch_rows(database, sql["list_partitions"], Unit, *values)
    if len(units) < limit:
        return UnitPage(units, replace(place, stage=EVENTS))
    last = units[-1]
    start = -1 if last.start is None else last.start
    return UnitPage(units, replace(place, after_start=start, after_key=last.partition_key or ""))


async def _list_events(database: Queryable, dataset: UUID, version: UUID, place: Place, limit: int) -> UnitPage:
    values = dataset, version, place.after_time, place.after_event, limit
    events = await fetch_rows(database, queries("catch_up")["list_events"], ListedEvent, *values)
    units = _units_of([event for event in events if event.counts])
    if len(events) < limit:
        return UnitPage(units, None)
    return UnitPage(units, replace(place, after_time=events[-1].created_at, after_event=events[-1].event_id))


def _units_of(events: Sequence[ListedEvent]) -> list[Unit]:
    """Of events with one scope, the last; of cursors that mean everything up to them, too."""
    found = (Unit(*(getattr(event, name) for name in Unit.__struct_fields__)) for event in events)
    return list({_identity(unit): unit for unit in found}.values())


def _overlaps(unit: Unit, within: Range) -> bool:
    return unit.span is not None and unit.span.overlaps(within)


def _identity(unit: Unit) -> tuple[Any, ...]:
    is_publish = unit.cursor_value is not None and unit.commit_number is not None
    return unit.kind, unit.partition_key, unit.cursor_value if is_publish else None
