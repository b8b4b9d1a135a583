"""Ends code whose attempt is over, where nobody else can: Lambda ends no call that its caller gives up."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from tracelake.errors import TraceError
from tracelake.runtime.retry import retry_with_backoff
from tracelake.udf.runtime_api import FunctionError
from tracelake.udf.sandbox_host import SandboxHost
from tracelake.wire.client import TaskClient
from tracelake.wire.task.lifecycle import HeartbeatRequest, Invocation

MOST_SECONDS: Final = 10.0
"""Between two heartbeats, however long the lease: how long code may go on after its task was canceled."""


async def end_when_over(host: SandboxHost, invocation: Invocation, tasks: TaskClient) -> None:
    """Returns when it has ended the code: its task was canceled, or its lease was lost."""
    because = await _until_over(invocation, tasks)
    await host.kill(FunctionError("Sandbox.AttemptOver", because))


async def _until_over(invocation: Invocation, tasks: TaskClient) -> str:
    """By heartbeats, as a worker sends them; outages are waited out."""
    token, seconds = invocation.capability_token, min(float(invocation.heartbeat_seconds), MOST_SECONDS)
    request = HeartbeatRequest(
        task_id=invocation.task_id, attempt=invocation.attempt, lease_token=invocation.lease_token
    )
    while True:
        await asyncio.sleep(seconds)
        try:
            answer = await retry_with_backoff(partial(tasks.heartbeat, token, request))
        except TraceError as refusal:  # what is refused now is refused again
            return refusal.message
        if answer.canceled:
            return "the task was canceled"
        token = answer.capability_token or token
