"""Accepted completions and their events, counted by job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

import asyncpg

from tracelake.dispatcher.control import Control
from tracelake.wire.output_messages import CompleteRequest


class Completion(Protocol):
    @property
    def request(self) -> CompleteRequest: ...

    @property
    def told(self) -> Sequence[object]: ...


async def count_plain(control: Control, batch: Sequence[Completion], rows: Sequence[asyncpg.Record | None]) -> None:
    """`rows`: None for one whose attempt is not the current one."""
    events: dict[UUID, int] = {}
    on_time = late = 0
    for completion, row in zip(batch, rows, strict=True):
        if row is None or not row["open"]:
            continue
        if row["status"] == "Running":
            on_time += 1
        else:
            late += 1
        control.names.forget(completion.request.task_id)
        if completion.told:
            events[row["job_id"]] = events.get(row["job_id"], 0) + len(completion.told)
    control.metrics.moved("Running", "Completed", on_time)
    control.metrics.moved("Failed", "Completed", late)
    for job_id, count in events.items():
        await count_events(control, job_id, count)


async def count_one(control: Control, row: asyncpg.Record, status: str, events: int) -> None:
    control.metrics.moved(row["status"], status)
    if events:
        await count_events(control, row["job_id"], events)


async def count_events(control: Control, job_id: UUID, count: int) -> None:
    job = await control.jobs.get(job_id)
    control.metrics.events.labels(job.dag_name, job.name).inc(count)
