"""Lines of a function reach the Dispatcher, also those that are on their way when it ends."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from uuid import uuid4

import httpx
import msgspec
import pytest

from tests.support.waiting import until
from tracelake.settings import UdfSettings
from tracelake.udf.forward_output import Lines
from tracelake.wire.client import TaskClient
from tracelake.wire.task.lifecycle import Invocation, JobRef, LogsAnswer, LogsRequest

pytestmark = pytest.mark.anyio


async def test_lines_that_are_being_sent_when_a_function_ends_are_stored() -> None:
    begun, go_on, stored = asyncio.Event(), asyncio.Event(), list[str]()

    async def dispatcher(request: httpx.Request) -> httpx.Response:
        begun.set()
        await go_on.wait()
        stored.extend(line.text for line in msgspec.json.decode(request.content, type=LogsRequest).lines)
        return httpx.Response(200, content=msgspec.json.encode(LogsAnswer(kept=len(stored))))

    async with httpx.AsyncClient(transport=httpx.MockTransport(dispatcher), base_url="https://dispatcher") as http:
        lines = Lines(invocation(), TaskClient(http), UdfSettings())
        lines.add(b"first")
        await until(begun.is_set, "it is being sent")
        lines.add(b"second")
        closing = asyncio.create_task(lines.close())
        await asyncio.sleep(0)  # it has begun
        go_on.set()
        await closing
    assert stored == ["first", "second"]


def invocation() -> Invocation:
    return Invocation(
        task_id=uuid4(),
        attempt=1,
        job=JobRef(dag_name="code", name="think"),
        operator="udf",
        config={},
        inputs=[],
        lease_token=uuid4(),
        lease_expires_at=datetime.now(UTC),
        capability_token="of a test",
    )
