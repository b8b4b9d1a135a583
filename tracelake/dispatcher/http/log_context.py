"""Binds organisation, DAG, job and task to the log lines about a task's request.

The token's claims are bound at once. DAG and job are known if the task was claimed at this replica; if it was not, they
are looked up only if the request is refused.
"""

from __future__ import annotations

from tracelake.capability.claims import Claims
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.tasks.names import fields as name_fields
from tracelake.errors import TraceError
from tracelake.runtime.logs import add_log_fields
from tracelake.runtime.tracing import is_tracing, set_attributes
from tracelake.store.db import OUTAGES
from tracelake.store.jobs import StoredJob
from tracelake.store.queries import queries


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


def _bind(claims: Claims, job: StoredJob | None) -> None:
    if job is None:
        fields = {"org": claims.org_id, "task": claims.task_id, "attempt": claims.attempt}
    else:
        fields = name_fields(job, claims.task_id, claims.attempt)
    add_log_fields(fields)
    if is_tracing():
        set_attributes(**fields)


async def _look_up(control: Control, claims: Claims) -> StoredJob | None:
    try:
        job_id = await control.pool.fetchval(queries("claim")["job_of"], claims.task_id)
        return None if job_id is None else await control.jobs.get(job_id)
    except (*OUTAGES, TraceError):
        return None  # the line is logged without them
