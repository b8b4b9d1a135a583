"""Refuses a new version of a DAG with a schedule whose last slot is over: a typing error in its year, most likely.

By the clock of Postgres, which decides slots too. A source of the active version keeps its schedule: what has fired for
the last time must not stand in the way of a change of another job.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from tracelake.domain.dag.model import Dag, Source, SourceKind
from tracelake.domain.dag.problems import Problems
from tracelake.domain.dag.schedules import why_over
from tracelake.domain.dag.yaml_nodes import plain, read_yaml
from tracelake.domain.ids import JobName, OrgId
from tracelake.domain.sources.schedule import Dst, Schedule
from tracelake.store.queries import Connection, Row, fetch_row, queries

CODE = "bad_schedule"
HINT = "name a year to come, or remove the source"


class ActiveSchedules(Row, frozen=True):
    now: datetime
    active: Any
    """Sources by the names of their jobs."""


async def refuse_past_schedules(connection: Connection, org: OrgId, dag: Dag, text: str) -> None:
    crons = {job.name: job.source for job in dag.jobs if job.source is not None and job.source.kind is SourceKind.CRON}
    if not crons:
        return
    row = await fetch_row(connection, queries("schedules")["find_active_schedules"], ActiveSchedules, org, dag.name)
    schedules = {name: _schedule(source) for name, source in crons.items()}
    new = {name: schedule for name, schedule in schedules.items() if schedule != _former(row.active.get(name))}
    if over := await asyncio.to_thread(_over, new, row.now):
        await asyncio.to_thread(_refuse, over, text)


def _schedule(source: Source) -> Schedule:
    return Schedule(source.schedule or "", source.tz or "UTC", source.dst or Dst.RUN_AFTER)


def _former(source: Mapping[str, Any] | None) -> Schedule | None:
    if source is None:
        return None
    return Schedule(source["schedule"], source.get("tz", "UTC"), Dst(source.get("dst", Dst.RUN_AFTER)))


def _over(schedules: Mapping[JobName, Schedule], now: datetime) -> dict[str, str]:
    """The reasons, by the names of jobs."""
    found = {name: why_over(schedule, now) for name, schedule in schedules.items()}
    return {name: reason for name, reason in found.items() if reason is not None}


def _refuse(over: Mapping[str, str], text: str) -> None:
    root, _ = read_yaml(text)
    problems = Problems(root)
    for number, job in enumerate(plain(root)["jobs"]):
        if reason := over.get(job["name"]):
            problems.add(("jobs", number, "source", "schedule"), CODE, reason, HINT)
    problems.raise_if_any()
