"""Tasks of `ecs_udf`: the wrapper keeps the lease and reports the end, a sandbox runs the code, one for each task.

The code gets its payload, its token and session keys; its result is reported. A lost lease ends the sandbox at once.
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
from tracelake.runtime.retry import retry_with_backoff
from tracelake.wire.client import TaskClient
from tracelake.wire.internal.identity import CredentialsRequest
from tracelake.wire.task.lifecycle import Claimed, Invocation
from tracelake.wire.task.outputs import CompleteRequest
from tracelake.worker.run_task import MAX_ERROR_CHARS, Finished, tag_of

log = structlog.get_logger()

RESULT_FIELDS: Final = frozenset(
    {"status", "events", "outputs", "error_message", "error_code", "retryable", "state", "progress"}
)


class FunctionFault(Protocol):
    """Why a function has no result."""

    @property
    def kind(self) -> str: ...

    @property
    def message(self) -> str: ...


class RunsFunctions(Protocol):
    """Runs functions in sandboxes. When a call is canceled, its sandbox is ended."""

    async def run(
        self, invocation: Invocation, more: Mapping[str, Any] | None = None, *, alone: bool = False
    ) -> bytes | FunctionFault:
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
        del api  # the function makes its own calls
        tag = tag_of(claimed)
        running = self._running[tag] = asyncio.run_coroutine_threadsafe(self._run(claimed), self.loop)
        try:
            return Finished(running.result())
        except CancelledError:
            return Finished(_failed(claimed, "the lease was lost"))
        except TraceError as wrong:
            log.warning("task failed", **wrong.as_dict())
            return Finished(_failed(claimed, wrong.message, retryable=wrong.retryable, code=wrong.code))
        finally:
            del self._running[tag]

    def cancel(self, claimed: Claimed) -> None:
        """End its sandbox at once."""
        if (running := self._running.get(tag_of(claimed))) is not None:
            running.cancel()

    async def _run(self, claimed: Claimed) -> CompleteRequest:
        more = {"credentials": await self._credentials(claimed)}
        crash_point("run_udf.minted")
        # No sandbox may be free: the lease is kept meanwhile.
        ended = await retry_with_backoff(
            lambda: self.functions.run(_invocation(claimed), more, alone=True), outages=(Busy,)
        )
        crash_point("run_udf.ended")
        return completion(claimed, ended)

    async def _credentials(self, claimed: Claimed) -> Any:
        """None where the store has none, or the token ends too soon: the sandbox's object endpoint needs none."""
        try:
            minted = await self.tasks.credentials(claimed.capability_token, CredentialsRequest(**_fence(claimed)))
        except (Refused, Unavailable) as refusal:
            log.info("no credentials", because=refusal.message)
            return None
        return msgspec.to_builtins(minted)


def completion(claimed: Claimed, ended: bytes | FunctionFault) -> CompleteRequest:
    """The function's result as a completion; a result that cannot be one is a failure with the reason."""
    if not isinstance(ended, bytes):
        return _failed(claimed, f"{ended.kind}: {ended.message}")
    result: Any = msgspec.json.decode(ended)
    if result is None:
        result = {}
    if not isinstance(result, dict):
        return _failed(claimed, "the function's result is not an object", retryable=False)
    if unknown := sorted(result.keys() - RESULT_FIELDS):
        return _failed(claimed, f"the function's result has unknown fields: {unknown[:10]}", retryable=False)
    try:
        return msgspec.convert(
            {"status": "Completed", **result, **msgspec.to_builtins(_fence(claimed))}, CompleteRequest
        )
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
    error = message.replace("\0", "?")[:MAX_ERROR_CHARS]
    fence = _fence(claimed)
    return CompleteRequest(**fence, status="Failed", error_message=error, retryable=retryable, error_code=code)


def _fence(claimed: Claimed) -> dict[str, Any]:
    return {"task_id": claimed.task.task_id, "attempt": claimed.attempt, "lease_token": claimed.lease_token}
