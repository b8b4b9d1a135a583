"""Where the rows of a question lie: generation, commit and files of each table that its caller may read.

For a user the users table says what he may; for an attempt its token has said it, and the lease says whether it still
counts. What is not theirs is left out, as if it did not exist. Statements follow each other without a transaction: the
first chooses commits, and what a commit holds never changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from uuid import UUID

import asyncpg

from tracelake.dispatcher.control import Control
from tracelake.dispatcher.datasets.cold_files import ColdCopy, cold_copies
from tracelake.dispatcher.datasets.list_task_files import refuse_removed
from tracelake.dispatcher.datasets.partition_files import from_text, partition_files
from tracelake.errors import InvalidRequest, LeaseLost, NotFound
from tracelake.store.identity import User
from tracelake.store.queries import queries
from tracelake.wire.query_messages import (
    MAX_READABLE,
    ColdFilesAnswer,
    Moment,
    Relation,
    RelationsAnswer,
    RelationsRequest,
)

Pin = tuple[UUID, int]
"""A generation as of a commit; a hot one as of a commit of its cold side."""


async def user_relations(control: Control, user: User, request: RelationsRequest) -> RelationsAnswer:
    names = [table.name for table in request.tables]
    moments = _moments([table.as_of for table in request.tables])
    sql = queries("relations")["user_pins"]
    found = await control.pool.fetch(sql, user.org_id, user.id, user.role == "admin", names, *moments)
    return RelationsAnswer(
        org_id=user.org_id,
        user_id=user.id,
        relations=await _relations(control.pool, found, request),
        readable=await _readable(control, user) if len(found) < len(names) else [],
    )


async def _readable(control: Control, user: User) -> list[str]:
    sql = queries("relations")["readable_names"]
    rows = await control.pool.fetch(sql, user.org_id, user.id, user.role == "admin", MAX_READABLE)
    return [row["name"] for row in rows]


async def task_relations(control: Control, request: RelationsRequest) -> RelationsAnswer:
    sql = queries("relations")
    task = await control.pool.fetchrow(sql["running_attempt"], request.task_id, request.attempt, request.lease_token)
    if task is None:
        raise LeaseLost("the attempt is not the current one, or is over", where="/attempt", hint="stop asking")
    tables = request.tables
    found = await control.pool.fetch(
        sql["task_pins"],
        task["org_id"],
        [table.name for table in tables],
        [table.dataset_version for table in tables],
        [table.commit for table in tables],
        *_moments([table.as_of for table in tables]),
        task["job_id"],
    )
    return RelationsAnswer(
        org_id=task["org_id"], user_id=None, relations=await _relations(control.pool, found, request)
    )


def _moments(asked: Sequence[Moment | None]) -> tuple[list[int | None], list[datetime | None]]:
    """Commits and times apart; a time without a zone is UTC."""
    commits = [moment if isinstance(moment, int) else None for moment in asked]
    times = [moment if isinstance(moment, datetime) else None for moment in asked]
    return commits, [time if time is None or time.tzinfo else time.replace(tzinfo=UTC) for time in times]


async def _relations(pool: asyncpg.Pool, found: Sequence[asyncpg.Record], request: RelationsRequest) -> list[Relation]:
    for row in found:
        _check_moment(row)
    twins = await cold_copies(pool, [row["dataset_version"] for row in found if row["hot"]])
    pins = [_cold_pin(row, twins) for row in found]
    # Files of partitions that were replaced long ago are removed: who goes back is told anew what is there.
    back = {pin for row, pin in zip(found, pins, strict=True) if row["travels"]}
    known = {(name.dataset_version, name.commit) for name in request.known} - back
    generations = {
        pin: twins[pin[0]].generations if row["hot"] else pin[:1]
        for row, pin in zip(found, pins, strict=True)
        if pin is not None
    }
    parts = await _parts(pool, generations, known)
    return [
        Relation(
            name=row["name"],
            dataset_uuid=row["dataset_uuid"],
            dataset_version=row["dataset_version"],
            commit=row["commit"] if pin is None else pin[1],
            hot=row["hot"],
            cold=None if pin is None else parts[pin],
            filters=from_text(row.get("filters")),
        )
        for row, pin in zip(found, pins, strict=True)
    ]


def _check_moment(row: asyncpg.Record) -> None:
    if not row["travels"]:
        return
    where = f"/as_of/{row['name']}"
    if row["hot"]:
        raise InvalidRequest(
            "its newest rows lie in a table, which is read as it is now", where=where, hint="leave out its as_of"
        )
    if row["commit"] > row["last_commit"]:
        raise InvalidRequest(
            f"there is nothing later than commit {row['last_commit']} to be read", where=where, hint="ask for less"
        )
    if row["first_commit"] is None or row["commit"] < row["first_commit"]:
        raise NotFound("the generation that is served now had no rows yet then", where=where)


def _cold_pin(row: asyncpg.Record, twins: Mapping[UUID, ColdCopy]) -> Pin | None:
    version = row["dataset_version"]
    if not row["hot"]:
        return version, row["commit"]
    return (version, twins[version].commit) if version in twins else None


async def _parts(
    pool: asyncpg.Pool, wanted: Mapping[Pin, Sequence[UUID]], known: set[Pin]
) -> dict[Pin, ColdFilesAnswer]:
    """By pin; `wanted` says which generations hold its files."""
    parts = {pin: ColdFilesAnswer(dataset_version=pin[0], commit=pin[1]) for pin in wanted}
    new = [pin for pin in wanted if pin not in known]
    if not new:
        return parts
    sql, asked = queries("relations"), [(n, version, pin[1]) for n, pin in enumerate(new) for version in wanted[pin]]
    numbers, versions, commits = (list(column) for column in zip(*asked, strict=True))
    schemas = await pool.fetch(sql["columns_of"], versions)
    columns = {row["dataset_version"]: from_text(row["columns"]) for row in schemas}
    listed: dict[Pin, list[asyncpg.Record]] = {pin: [] for pin in new}
    for row in await pool.fetch(sql["files_of"], numbers, versions, commits):
        pin = new[row["n"]]
        refuse_removed([row], pin[1])
        listed[pin].append(row)
    return parts | {
        pin: ColdFilesAnswer(
            dataset_version=pin[0],
            commit=pin[1],
            columns=columns.get(_latest(rows, wanted[pin])),
            partitions=[partition_files(row) for row in rows],
        )
        for pin, rows in listed.items()
    }


def _latest(rows: Sequence[asyncpg.Record], generations: Sequence[UUID]) -> UUID:
    """The generation that was committed to last: its columns are those of today."""
    version: UUID = max(rows, key=lambda row: row["valid_from"])["dataset_version"] if rows else generations[0]
    return version
