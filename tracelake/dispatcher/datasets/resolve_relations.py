"""Resolves the tables of a query: generation, commit and files of each table that the caller may read.

A user may read what the users table allows. A task may read what its token names, as long as its lease holds. Tables
that the caller may not read are left out, as if they did not exist. The statements run without a transaction: the first
chooses commits, and the contents of a commit never change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from tracelake.dispatcher.datasets.list_behind import list_behind
from tracelake.dispatcher.datasets.partitions import ColdCopy, StoredPartition, cold_copies, refuse_removed
from tracelake.domain.flow.pressure import Priority
from tracelake.errors import InvalidRequest, LeaseLost, NotFound
from tracelake.store.identity import User
from tracelake.store.queries import Row, fetch_column, fetch_rows, find_row, queries
from tracelake.wire.internal.queries import (
    MAX_READABLE,
    ColdFilesAnswer,
    Moment,
    RelationAnswer,
    RelationsAnswer,
    RelationsRequest,
)

Pin = tuple[UUID, int]
"""A generation as of a commit; for a hot one, a commit of its Parquet copy."""


class RequestedTable(Row, frozen=True):
    name: str
    dataset_uuid: UUID
    dataset_version: UUID
    hot: bool
    last_commit: int
    commit: int
    first_commit: int | None
    travels: bool
    """Whether the query asks for an earlier state."""
    removed_commit: int | None
    """The last commit of the dataset when its generation was removed."""
    is_foreign: bool
    """The commit belongs to another generation than the one that the token names."""
    filters: list[Mapping[str, Any]] | None
    behind: str | None
    """Its DAG, if that has not caught up since another version of it became active."""


class NumberedPartition(StoredPartition, frozen=True):
    dataset_version: UUID
    n: int


async def user_relations(pool: asyncpg.Pool, user: User, request: RelationsRequest) -> RelationsAnswer:
    names = [table.name for table in request.tables]
    moments = _moments([table.as_of for table in request.tables])
    tables = await fetch_rows(
        pool, queries("relations")["list_user_tables"], RequestedTable, *user.reads_as, names, *moments
    )
    readable: list[str] = []
    if len(tables) < len(names):
        sql = queries("relations")["list_readable_names"]
        readable = await fetch_column(pool, sql, *user.reads_as, MAX_READABLE)
    relations = await _relations(pool, tables, request) if request.files else _without_files(tables)
    relations = await _with_lag(pool, user.org_id, tables, relations)
    return RelationsAnswer(org_id=user.org_id, user_id=user.id, relations=relations, readable=readable)


class RunningAttempt(Row, frozen=True):
    org_id: UUID
    job_id: UUID
    priority: str


async def task_relations(pool: asyncpg.Pool, request: RelationsRequest) -> RelationsAnswer:
    sql, fence = queries("relations"), (request.task_id, request.attempt, request.lease_token)
    running = await find_row(pool, sql["running_attempt"], RunningAttempt, *fence)
    if running is None:
        raise LeaseLost("the attempt is not the current one, or has ended", where="/attempt", hint="stop the task")
    tables = await fetch_rows(
        pool,
        sql["list_task_tables"],
        RequestedTable,
        running.org_id,
        [table.name for table in request.tables],
        [table.dataset_version for table in request.tables],
        [table.commit for table in request.tables],
        *_moments([table.as_of for table in request.tables]),
        running.job_id,
    )
    relations = await _relations(pool, tables, request)
    priority = Priority(running.priority)
    return RelationsAnswer(org_id=running.org_id, user_id=None, relations=relations, priority=priority)


def _moments(moments: Sequence[Moment | None]) -> tuple[list[int | None], list[datetime | None]]:
    """Commits and times as two columns; a time without a zone is UTC."""
    commits = [moment if isinstance(moment, int) else None for moment in moments]
    times = [moment if isinstance(moment, datetime) else None for moment in moments]
    return commits, [time if time is None or time.tzinfo else time.replace(tzinfo=UTC) for time in times]


async def _relations(
    pool: asyncpg.Pool, tables: Sequence[RequestedTable], request: RelationsRequest
) -> list[RelationAnswer]:
    for table in tables:
        _check_moment(table)
    copies = await cold_copies(pool, [table.dataset_version for table in tables if table.hot])
    pins = [_cold_pin(table, copies) for table in tables]
    # Files of replaced partitions may have been deleted, so an earlier state is always listed again.
    earlier = {pin for table, pin in zip(tables, pins, strict=True) if table.travels}
    known = {(answer.dataset_version, answer.commit) for answer in request.known} - earlier
    generations = {
        pin: copies[pin[0]].generations if table.hot else pin[:1]
        for table, pin in zip(tables, pins, strict=True)
        if pin is not None
    }
    files = await files_of(pool, generations, known)
    return [
        RelationAnswer(
            name=table.name,
            dataset_uuid=table.dataset_uuid,
            dataset_version=table.dataset_version,
            commit=table.commit if pin is None else pin[1],
            hot=table.hot,
            cold=None if pin is None else files[pin],
            filters=table.filters,
        )
        for table, pin in zip(tables, pins, strict=True)
    ]


async def _with_lag(
    pool: asyncpg.Pool, org_id: UUID, tables: Sequence[RequestedTable], relations: list[RelationAnswer]
) -> list[RelationAnswer]:
    behind = {table.name: table.behind for table in tables if table.behind is not None}
    if not behind:
        return relations
    found = {dag.dag: dag.tasks for dag in await list_behind(pool, org_id, sorted(set(behind.values())))}
    return [msgspec.structs.replace(item, behind=found.get(behind.get(item.name, ""))) for item in relations]


def _without_files(tables: Sequence[RequestedTable]) -> list[RelationAnswer]:
    return [
        RelationAnswer(
            name=table.name,
            dataset_uuid=table.dataset_uuid,
            dataset_version=table.dataset_version,
            commit=table.commit,
            hot=table.hot,
            cold=None,
            filters=table.filters,
        )
        for table in tables
    ]


def _check_moment(table: RequestedTable) -> None:
    if not table.travels:
        return
    where = f"/as_of/{table.name}"
    if table.hot:
        raise InvalidRequest(
            "its newest rows are in a Postgres table, which has no earlier state", where=where, hint="leave out as_of"
        )
    if table.commit > table.last_commit:
        raise InvalidRequest(f"its last commit is {table.last_commit}", where=where, hint="use an earlier as_of")
    if table.is_foreign:
        raise NotFound(f"commit {table.commit} is of another generation, which the token does not name", where=where)
    if table.first_commit is None or table.commit < table.first_commit:
        raise NotFound("the current generation had no rows then", where=where)
    if table.removed_commit is not None and table.commit <= table.removed_commit:
        reason = f"the rows of commit {table.commit} are gone: their generation was removed"
        raise NotFound(reason, where=where, hint="`retention.left_generations_days` says how long they are kept")


def _cold_pin(table: RequestedTable, copies: Mapping[UUID, ColdCopy]) -> Pin | None:
    version = table.dataset_version
    if not table.hot:
        return version, table.commit
    return (version, copies[version].commit) if version in copies else None


async def files_of(
    pool: asyncpg.Pool, generations: Mapping[Pin, Sequence[UUID]], known: set[Pin]
) -> dict[Pin, ColdFilesAnswer]:
    """By pin; `generations` are those that hold its files. Pins that the caller knows have no partitions."""
    answers = {pin: ColdFilesAnswer(dataset_version=pin[0], commit=pin[1]) for pin in generations}
    new = [pin for pin in generations if pin not in known]
    if not new:
        return answers
    sql = queries("relations")
    wanted = [(n, version, pin[1]) for n, pin in enumerate(new) for version in generations[pin]]
    numbers, versions, commits = (list(column) for column in zip(*wanted, strict=True))
    columns = dict[UUID, Any](map(tuple, await pool.fetch(sql["list_columns"], versions)))
    partitions: dict[Pin, list[NumberedPartition]] = {pin: [] for pin in new}
    for partition in await fetch_rows(pool, sql["list_files"], NumberedPartition, numbers, versions, commits):
        pin = new[partition.n]
        refuse_removed([partition], pin[1])
        partitions[pin].append(partition)
    return answers | {
        pin: ColdFilesAnswer(
            dataset_version=pin[0],
            commit=pin[1],
            columns=columns.get(_latest(listed, generations[pin])),
            partitions=[partition.as_message() for partition in listed],
        )
        for pin, listed in partitions.items()
    }


def _latest(partitions: Sequence[NumberedPartition], generations: Sequence[UUID]) -> UUID:
    """The generation with the last commit: its columns are the current ones."""
    latest = max(partitions, key=lambda partition: partition.commit, default=None)
    return latest.dataset_version if latest else generations[0]
