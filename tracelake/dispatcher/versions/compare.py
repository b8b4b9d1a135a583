"""Compares the units of an input with what a job has processed: which are done, and what keeps the others."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Literal
from uuid import UUID

from tracelake.dispatcher.versions.units import Place, Unit, columns, last_unit, list_units
from tracelake.domain.ranges import Range
from tracelake.store.queries import Queryable, Row, fetch_rows, queries

PAGE = 20_000
UnitState = Literal["done", "missing", "pending", "failed", "skipped"]


class Read(Row, frozen=True):
    """An input that triggers a job, and the generation of it that the job reads."""

    job_id: UUID
    job_name: str
    dataset_uuid: UUID
    dataset_version: UUID
    makes_whole: bool
    takes_history: bool
    input: str


class Unfinished(Row, frozen=True):
    place: int
    state: str


async def list_reads(database: Queryable, org_id: UUID, dag: str, job: str | None = None) -> list[Read]:
    return await fetch_rows(database, queries("catch_up")["list_reads"], Read, org_id, dag, job)


async def states(
    database: Queryable, read: Read, *, within: Range | None = None
) -> AsyncIterator[list[tuple[Unit, UnitState]]]:
    """The units of the input that overlap the range, a page at a time, each with its state."""
    if read.makes_whole:
        yield await _states(database, read, await last_unit(database, read.dataset_uuid, read.dataset_version))
        return
    place: Place | None = Place()
    while place is not None:
        page = await list_units(database, read.dataset_uuid, read.dataset_version, place, PAGE, within=within)
        yield await _states(database, read, page.units)
        place = page.place


async def _states(database: Queryable, read: Read, units: Sequence[Unit]) -> list[tuple[Unit, UnitState]]:
    if not units:
        return []
    compared = read.job_id, read.dataset_uuid, read.dataset_version, *columns(units)
    rows = await fetch_rows(database, queries("catch_up")["list_unfinished"], Unfinished, *compared)
    found: dict[int, UnitState] = {row.place: row.state for row in rows}  # type: ignore[misc]
    return [(unit, found.get(place, "done")) for place, unit in enumerate(units)]
