"""Tasks of `ecs_udf`: the wrapper keeps the lease and reports the end, a sandbox runs the code, one for each task.

The code gets its payload, its token and keys cut down for it; what it returns is what is reported. A lease that is lost
ends the sandbox at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import msgspec
import structlog

from tracelake.errors import Busy, Refused, TraceError, Unavailable
from tracelake.operators.api.context import TaskApi
from tracelake.runtime.crash_points import crash_point
from tracelake.wire.client import TaskClient
from tracelake.wire.task_messages import Claimed, CompleteRequest, CredentialsRequest, Invocation
from tracelake.worker.run_task import MAX_ERROR_CHARS, Finished, tag_of

log = structlog.get_logger()

BUSY_SECONDS: Final = 0.5
MAX_LOG_BYTES: Final = frozenset(
    {"status", "events", "outputs", "error_message", "error_code", "retryable", "state", "progress"}
)


class Fault(Protocol):
    """Why a function gave no result."""

    @property
    def kind(self) -> str: ...

    @property
    def message(self) -> str: ...


class RunsFunctions(Protocol):
    """What has sandboxes. Canceled, it ends the one that it runs this in."""

    async def run(
        self, invocation: Invocation, more: Mapping[str, Any] | None = None, *, alone: bool = False
    ) -> bytes | Fault:
        """The function's result, which is JSON, or why there is none."""
        ...


@dataclass(frozen=True)
class SandboxRunner:
    functions: RunsFunctions
    tasks: TaskClient
    loop: asyncio.AbstractEventLoop
    _running: dict[str, Future[CompleteRequest]] = field(default_factory=dict)

    def run(self, claimed: Claimed, api: TaskApi) -> Finished:
        """Called in a thread of its own. Whatever happens ends as a completion."""
        del api  # the function speaks for itself
        tag = tag_of(claimed)
        asked = self._running[tag] = asyncio.run_coroutine_threadsafe(self._run(claimed), self.loop)
        try:
            return Finished(asked.result())
        except CancelledError:
            return Finished(_failed(claimed, "the lease was lost"))
        except TraceError as wrong:
            log.warning("task failed", **wrong.as_dict())
            return Finished(_failed(claimed, wrong.message, retryable=wrong.retryable, code=wrong.code))
        finally:
            del self._running[tag]

    def cancel(self, claimed: Claimed) -> None:
        """End its sandbox at once."""
        if (asked := self._running.get(tag_of(claimed))) is not None:
            asked.cancel()

    async def _run(self, claimed: Claimed) -> CompleteRequest:
        more = {"credentials": await self._credentials(claimed)}
        crash_point("run_udf.minted")
        while True:
            try:
                ended = await self.functions.run(_invocation(claimed), more, alone=True)
            except Busy:
                await asyncio.sleep(BUSY_SECONDS)  # the lease is kept meanwhile
            else:
                crash_point("run_udf.ended")
                return completion(claimed, ended)

    async def _credentials(self, claimed: Claimed) -> Any:
        """None where the store, or the token's short life, gives none: the sandbox's own door to it needs none."""
        try:
            minted = await self.tasks.credentials(claimed.capability_token, CredentialsRequest(**_fence(claimed)))
        except (Refused, Unavailable) as refusal:
            log.info("no credentials", because=refusal.message)
            return None
        return msgspec.to_builtins(minted)


def completion(claimed: Claimed, ended: bytes | Fault) -> CompleteRequest:
    """What the function said as what is reported; what cannot be reported is a failure that says why."""
    if not isinstance(ended, bytes):
        return _failed(claimed, f"{ended.kind}: {ended.message}")
    said: Any = msgspec.json.decode(ended)
    if said is None:
        said = {}
    if not isinstance(said, dict):
        return _failed(claimed, "the function's result is not an object", retryable=False)
    if strange := sorted(said.keys() - MAX_LOG_BYTES):
        return _failed(claimed, f"the function's result has fields that mean nothing: {strange[:10]}", retryable=False)
    try:
        return msgspec.convert({"status": "Completed", **said, **msgspec.to_builtins(_fence(claimed))}, CompleteRequest)
    except msgspec.ValidationError as wrong:
        return _failed(claimed, f"the function's result cannot be reported: {wrong}", retryable=False)


def _invocation(claimed: Claimed) -> Invocation:
    task = claimed.task
    return Invocation(
        **{name: getattr(task, name) for name in task.__struct_fields__},
        lease_token=claimed.lease_token,
        lease_expires_at=claimed.lease_expires_at,
        capability_token=claimed.capability_token,
        bundle_url=task.udf.url if task.udf else None,
        completes="wrapper",
    )


def _failed(
    claimed: Claimed, message: str, *, retryable: bool = True, code: str | msgspec.UnsetType = msgspec.UNSET
) -> CompleteRequest:
    said = message.replace("\0", "?")[:MAX_ERROR_CHARS]
    fence = _fence(claimed)
    return CompleteRequest(**fence, status="Failed", error_message=said, retryable=retryable, error_code=code)


def _fence(claimed: Claimed) -> dict[str, Any]:
    return {"task_id": claimed.task.task_id, "attempt": claimed.attempt, "lease_token": claimed.lease_token}
