"""A completion as it was received: checked against itself and its token, and, if it names files, against those."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

import msgspec

from tracelake.capability.claims import Claims
from tracelake.dispatcher.events.accept import read_invalidations
from tracelake.dispatcher.events.new_events import NewEvent, read_events
from tracelake.dispatcher.tasks.completion.verify_outputs import Schema, verify_outputs
from tracelake.domain.error_codes import is_platform_fault
from tracelake.domain.event import PartitionScope
from tracelake.domain.task import TaskState
from tracelake.errors import InvalidRequest
from tracelake.ports import ObjectStore
from tracelake.wire.task.outputs import CompleteRequest
from tracelake.wire.user.tasks import FailureFault


class Completion(NamedTuple):
    """One completion of a batch. A tuple, because making one is a part of every call."""

    request: CompleteRequest
    claims: Claims
    hash: bytes
    """Of the whole request: the same one again is answered as the first time."""
    ends_as: TaskState
    events: Sequence[NewEvent]
    invalidations: Sequence[PartitionScope]
    schemas: Mapping[UUID, Schema]
    has_effects: bool
    """Whether it changes more than the statement of its batch does: commits, published ranges, invalidations."""
    fault: FailureFault | None
    """Whose fault a failure was."""

    @property
    def reports(self) -> bool:
        """Whether it reports anything but its end: then a bootstrap has been done."""
        return self.has_effects or bool(self.events) or self.state is not None

    @property
    def state(self) -> Mapping[str, object] | None:
        return self.request.state if self.ends_as is TaskState.COMPLETED else None

    @property
    def outputs(self) -> str | None:
        """As text: asyncpg would take a list of lists for an array of two dimensions."""
        if self.ends_as is not TaskState.COMPLETED:
            return None
        return msgspec.json.encode(self.request.outputs).decode() if self.request.outputs else "[]"

    @property
    def reason(self) -> str | None:
        """Why it failed or was canceled."""
        if self.ends_as is TaskState.COMPLETED:
            return None
        is_failure = self.ends_as is TaskState.FAILED
        return self.request.error_message or (
            "the task failed and did not say why" if is_failure else "the worker canceled it"
        )


async def read_completion(objects: ObjectStore, request: CompleteRequest, claims: Claims) -> Completion:
    _refuse_contradictions(request)
    return completion_of(
        request, claims, await verify_outputs(objects, request.outputs, claims) if request.outputs else {}
    )


def completion_of(request: CompleteRequest, claims: Claims, schemas: Mapping[UUID, Schema]) -> Completion:
    """`schemas`: of the files that it names, which are known to be there."""
    return Completion(
        request,
        claims,
        hash=hashlib.sha256(msgspec.json.encode(request)).digest(),
        ends_as=TaskState(request.status),
        events=read_events(request.events, claims),
        invalidations=read_invalidations(request.invalidations, claims),
        schemas=schemas,
        has_effects=bool(request.outputs or request.datasets_published or request.invalidations),
        fault=_fault(request) if request.status == "Failed" else None,
    )


def _fault(request: CompleteRequest) -> FailureFault:
    return "platform" if is_platform_fault(request.error_code or None, retryable=request.retryable) else "job"


def _refuse_contradictions(request: CompleteRequest) -> None:
    if request.status == "Completed" and request.error_message:
        raise InvalidRequest("a completed task has no error", where="/error_message")
    if request.status != "Completed":
        for name in ("events", "outputs", "datasets_published", "invalidations"):
            if getattr(request, name):
                raise InvalidRequest(f"a task that did not complete has no {name}", where=f"/{name}")
