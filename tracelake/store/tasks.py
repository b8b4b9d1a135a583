"""The fence: what an attempt writes counts only while its attempt and lease token are the task's current ones.

The condition itself is `holds_lease` in Postgres; every statement that an attempt causes asks it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol
from uuid import UUID

from tracelake.domain.task import TaskState
from tracelake.errors import LeaseLost
from tracelake.store.queries import Connection, Queryable, Row, fetch_rows, queries


class Fence(Protocol):
    """What names an attempt; every call of a task carries it."""

    @property
    def task_id(self) -> UUID: ...
    @property
    def attempt(self) -> int: ...
    @property
    def lease_token(self) -> UUID: ...


class FencedTask(Row, frozen=True):
    n: int
    org_id: UUID
    job_id: UUID
    status: str
    started_at: datetime
    open: bool
    """The attempt may still write."""
    late: bool
    """Its lease has expired."""


async def lock_fenced(connection: Connection, fences: Sequence[Fence]) -> Mapping[int, FencedTask]:
    """The tasks of those attempts that are the current ones, locked in the order of their ids; by position."""
    tasks = await fetch_rows(connection, queries("complete")["lock_fenced"], FencedTask, *fence_columns(fences))
    return {task.n - 1: task for task in tasks}


async def lock_open(connection: Connection, fence: Fence) -> FencedTask:
    """The task of one attempt, locked; LeaseLost unless the attempt may still write."""
    task = (await lock_fenced(connection, [fence])).get(0)
    if task is None:
        raise not_current()
    if not task.open:
        raise is_over(task.status)
    return task


async def require_running(database: Queryable, fence: Fence) -> None:
    """LeaseLost unless the attempt is the current one and runs. Locks nothing: it is so at this moment."""
    status = await status_of(database, fence)
    if status is None:
        raise not_current()
    if status != TaskState.RUNNING:
        raise is_over(status)


async def status_of(database: Queryable, fence: Fence) -> str | None:
    """The task's state; None if another attempt is the current one."""
    sql = queries("claim")["status_of_attempt"]
    status: str | None = await database.fetchval(sql, fence.task_id, fence.attempt, fence.lease_token)
    return status


def fence_columns(fences: Sequence[Fence]) -> tuple[list[UUID], list[int], list[UUID]]:
    """Task ids, attempts and lease tokens, for `unnest`."""
    return (
        [fence.task_id for fence in fences],
        [fence.attempt for fence in fences],
        [fence.lease_token for fence in fences],
    )


def not_current() -> LeaseLost:
    return LeaseLost("another attempt is the current one", where="/attempt", hint="stop, report nothing")


def is_over(status: str) -> LeaseLost:
    return LeaseLost(f"the attempt is over: the task is {status}", where="/lease_token", hint="stop, report nothing")
