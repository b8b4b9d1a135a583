"""The call that sends an invocation to a runner over HTTP, against a server that answers as Lambda's Invoke does."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from uuid import UUID, uuid4

import msgspec
import pytest
from aiohttp import web

from tests.support.dispatcher.functions import Host, fan_out, statuses, until
from tracelake.adapters.invoker_http import PATH, PLACES, HttpInvoker
from tracelake.dispatcher.control import Control
from tracelake.errors import ServiceUnavailable
from tracelake.ports import Invoked, Places
from tracelake.wire.task.lifecycle import Invocation

pytestmark = pytest.mark.anyio

ORG = uuid4()


@asynccontextmanager
async def lambda_host(
    answer: Callable[[web.Request], Awaitable[web.StreamResponse]], path: str = PATH
) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_route("*", path, answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("status", "headers", "body", "ended"),
    [
        (200, {}, "{}", Invoked()),
        (
            200,
            {"X-Amz-Function-Error": "Unhandled"},
            '{"errorType": "KeyError", "errorMessage": "x"}',
            Invoked("KeyError: x"),
        ),
        (200, {"X-Amz-Function-Error": "Unhandled"}, "broken", Invoked("the function failed: broken")),
        (429, {}, "full", Invoked("the runner has no room", started=False, busy=True)),
        (503, {}, "down", Invoked("the runner answered 503: down", started=False)),
        (401, {}, "who?", Invoked("the runner answered 401: who?", started=False)),
        (400, {}, "too large", Invoked("the runner refuses the task: too large", started=False, refused=True)),
    ],
)
async def test_the_invoke_call_says_whether_something_ran_and_why_it_failed(
    status: int, headers: dict[str, str], body: str, ended: Invoked
) -> None:
    async def answer(request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == "Bearer secret"
        assert await request.read() == b'{"task": 1}'
        return web.Response(status=status, headers=headers, text=body)

    async with lambda_host(answer) as url:
        invoker = HttpInvoker(url, "secret", verify=True)
        assert await invoker.invoke(b'{"task": 1}', org=ORG, timeout_seconds=5) == ended
        await invoker.close()


async def test_a_task_that_the_runner_refuses_fails_for_good_and_holds_up_no_other(control: Control) -> None:
    chain = await fan_out(control, 3)
    await control.pool.execute("UPDATE jobs SET max_attempts = 5 WHERE id = $1", chain.jobs["second"])
    asked = Counter[UUID]()

    async def answer(request: web.Request) -> web.Response:
        invocation = msgspec.json.decode(await request.read(), type=Invocation)
        asked[invocation.task_id] += 1
        if invocation.scope.cursor == 0:
            return web.Response(status=400, text="the request has more than 6291456 bytes")
        await Host(control, None).complete(invocation)
        return web.json_response(None)

    async def over() -> bool:
        return sorted(await statuses(control, chain)) == ["Completed", "Completed", "Failed"]

    async with lambda_host(answer) as url:
        invoker = HttpInvoker(url, "secret", verify=True)
        functions = control.call_functions(invoker, 16)
        try:
            await until(functions, control.drain(functions.signal), over)
        finally:
            await functions.stop()
            await invoker.close()
    assert sorted(asked.values()) == [1, 1, 1]
    sql = "SELECT attempt, next_retry_at, error_message FROM tasks WHERE job_id = $1 AND status = 'Failed'"
    row = await control.pool.fetchrow(sql, chain.jobs["second"])
    assert row is not None
    assert (row["attempt"], row["next_retry_at"]) == (1, None)
    assert "the runner refuses the task: the request has more than 6291456 bytes" in row["error_message"]


async def test_a_refused_connection_ran_nothing_and_a_broken_one_may_have() -> None:
    async def hang_up(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async with lambda_host(hang_up) as url:
        invoker = HttpInvoker(url, "secret", verify=True)
        lost = await invoker.invoke(b"{}", org=ORG, timeout_seconds=5)
        assert lost.started
        assert lost.lost
        assert lost.error is not None
        assert "lost while the function ran" in lost.error
    gone = await invoker.invoke(b"{}", org=ORG, timeout_seconds=5)
    assert not gone.started
    await invoker.close()


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (200, '{"total": 8, "per_org": 4}', Places(8, 4)),
        (404, "", None),
        (503, "", "503"),
        (200, "[]", "how many places"),
    ],
)
async def test_the_number_of_places_is_read_from_the_runner(
    status: int, body: str, expected: Places | str | None
) -> None:
    async def answer(request: web.Request) -> web.Response:
        assert (request.method, request.headers["Authorization"]) == ("GET", "Bearer secret")
        return web.Response(status=status, text=body, content_type="application/json")

    async with lambda_host(answer, PLACES) as url:
        invoker = HttpInvoker(url, "secret", verify=True)
        if isinstance(expected, str):
            with pytest.raises(ServiceUnavailable, match=expected):
                await invoker.places()
        else:
            assert await invoker.places() == expected
    with pytest.raises(ServiceUnavailable):
        await invoker.places()
    await invoker.close()
