"""Lines about a task's request carry whose the task is.

What the token says is bound at once. DAG and job are known if the task was claimed at this replica; if it was not, they
are looked up only when there is something to say: a refusal.
"""

from __future__ import annotations

from trace_platform.capability.claims import Claims
from trace_platform.dispatcher.control import Control
from trace_platform.dispatcher.names import fields as name_fields
from trace_platform.errors import TraceError
from trace_platform.observe.logs import speak_also_of
from trace_platform.observe.tracing import is_tracing, note
from trace_platform.store.db import OUTAGES
from trace_platform.store.jobs import Job
from trace_platform.store.queries import queries


class about:  # noqa: N801 - read as a word: `async with about(control, claims)`
    """For as long as the block lasts, and for the refusal that may come of it. A class: this is a hot path."""

    __slots__ = ("_claims", "_control", "_job")

    def __init__(self, control: Control, claims: Claims) -> None:
        self._control = control
        self._claims = claims
        self._job = control.names.of(claims.task_id)

    async def __aenter__(self) -> None:
        _bind(self._claims, self._job)

    async def __aexit__(self, _kind: object, wrong: BaseException | None, _where: object) -> None:
        if isinstance(wrong, TraceError) and self._job is None:
            found = await _look_up(self._control, self._claims)
            if found is not None:
                _bind(self._claims, found)


def _bind(claims: Claims, job: Job | None) -> None:
    if job is None:
        fields = {"org": claims.org_id, "task": claims.task_id, "attempt": claims.attempt}
    else:
        fields = name_fields(job, claims.task_id, claims.attempt)
    speak_also_of(fields)
    if is_tracing():
        note(**fields)


async def _look_up(control: Control, claims: Claims) -> Job | None:
    try:
        job_id = await control.pool.fetchval(queries("claim")["job_of"], claims.task_id)
        return None if job_id is None else await control.jobs.get(job_id)
    except (*OUTAGES, TraceError):
        return None  # the line is said without
