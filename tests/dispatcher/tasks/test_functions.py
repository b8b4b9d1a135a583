"""Tasks of `runtime: lambda`: claimed by the Dispatcher, sent to a function, and over when the function is.

The function and what runs it are not ours: here they are a port that does what the test says, and, for the adapter, a
server that answers as Lambda's Invoke call does.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest
from aiohttp import web

from tests.support.cases.specification import has_shape, variants
from tests.support.dispatcher.job_chain import Chain, a_task, claimed, completion, deploy_chain
from tests.support.verbs import cancel_task
from tests.support.waiting import SECONDS
from tracelake.adapters.invoker_http import PATH, PLACES, HttpInvoker
from tracelake.capability.claims import decode
from tracelake.capability.jws import parse_token
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.outbox.drain import Drain
from tracelake.dispatcher.runtimes import call_functions
from tracelake.dispatcher.runtimes.call_functions import SILENT, CallFunctions
from tracelake.errors import ServiceUnavailable
from tracelake.ports import Invoked, Places
from tracelake.store.queries import queries
from tracelake.wire.task.lifecycle import Invocation
from tracelake.wire.task.outputs import CompleteRequest

pytestmark = pytest.mark.anyio

ORG = uuid4()

Act = Callable[[Invocation], Awaitable[Invoked]]


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases are renewed in every step, and an unreachable runner is retried soon."""
    monkeypatch.setattr(call_functions, "RENEW_SECONDS", 0.0)
    monkeypatch.setattr(call_functions, "AWAY_SECONDS", (0.01, 0.02))


@dataclass
class Host:
    """Runs functions: each does what `act` says."""

    control: Control
    act: Act | None
    """None: it completes its task."""
    capacity: Places | None = None
    """What it says of its places."""
    invocations: list[Invocation] = field(default_factory=list)
    ended: list[UUID] = field(default_factory=list)

    async def invoke(self, payload: bytes, *, org: UUID, timeout_seconds: float) -> Invoked:
        assert org
        assert timeout_seconds == 3600
        invocation = msgspec.json.decode(payload, type=Invocation)
        assert has_shape(variants("001/2")[0], msgspec.json.decode(payload)), "as the specification shows it"
        self.invocations.append(invocation)
        try:
            return await (self.act or self.complete)(invocation)
        except asyncio.CancelledError:
            self.ended.append(invocation.task_id)
            raise

    async def places(self) -> Places | None:
        return self.capacity

    async def complete(self, invocation: Invocation) -> Invoked:
        """As a function does that says so itself."""
        request = CompleteRequest(
            task_id=invocation.task_id,
            attempt=invocation.attempt,
            lease_token=invocation.lease_token,
            status="Completed",
        )
        await self.control.completer()(request, decode(parse_token(invocation.capability_token).payload))
        return Invoked()


async def fan_out(control: Control, tasks: int, slug: str = "acme") -> Chain:
    """`second` runs on functions, and so many events wait for it."""
    chain = await deploy_chain(control, slug=slug)
    await control.pool.execute("UPDATE jobs SET runtime = 'lambda' WHERE id = $1", chain.jobs["second"])
    source, claims = await claimed(control, await a_task(control, chain))
    events = [chain.event("first", cursor=cursor) for cursor in range(tasks)]
    await control.completer()(completion(source, events=events), claims)
    return chain


async def statuses(control: Control, chain: Chain) -> list[str]:
    rows = await control.pool.fetch(
        "SELECT status::text FROM tasks WHERE job_id = $1 ORDER BY id", chain.jobs["second"]
    )
    return [row["status"] for row in rows]


async def until(functions: CallFunctions, drain: Drain, done: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(SECONDS):
        while not await done():
            while await drain.once() + await functions.once():
                pass
            await asyncio.sleep(0.01)


@asynccontextmanager
async def calling(
    control: Control, act: Act | None = None, most: int = 16, capacity: Places | None = None
) -> AsyncIterator[tuple[Host, Any]]:
    host = Host(control, act, capacity)
    functions = control.call_functions(host, most)
    drain = control.drain(functions.signal)

    async def run(done: Callable[[], Awaitable[bool]]) -> None:
        await until(functions, drain, done)

    try:
        yield host, run
    finally:
        await functions.stop()


async def test_a_function_is_called_once_with_all_that_it_needs_and_its_report_counts(control: Control) -> None:
    chain = await fan_out(control, 3)
    async with calling(control) as (host, run):
        await run(lambda: all_are(control, chain, "Completed", 3))
    assert len({invocation.task_id for invocation in host.invocations}) == len(host.invocations) == 3
    invocation = host.invocations[0]
    assert (invocation.job.name, invocation.operator, invocation.attempt, invocation.completes) == (
        "second",
        "noop",
        1,
        "function",
    )
    assert invocation.inputs[0].dataset_uuid == chain.datasets["first"]
    assert decode(parse_token(invocation.capability_token).payload).task_id == invocation.task_id
    assert await control.pool.fetchval("SELECT count(*) FROM outbox WHERE status <> 'Done'") == 0


async def all_are(control: Control, chain: Chain, status: str, count: int) -> bool:
    return await statuses(control, chain) == [status] * count


async def test_no_more_run_at_once_than_there_are_places_and_those_that_wait_are_not_claimed(control: Control) -> None:
    chain, gate, inside = await fan_out(control, 7), asyncio.Event(), 0
    most = 0

    async def act(invocation: Invocation) -> Invoked:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await gate.wait()
        inside -= 1
        return await host.complete(invocation)

    async with calling(control, act, most=3) as (host, run):

        async def three_run() -> bool:
            return (await statuses(control, chain)).count("Running") == 3 and inside == 3

        await run(three_run)
        assert (await statuses(control, chain)).count("Queued") == 4
        gate.set()
        await run(lambda: all_are(control, chain, "Completed", 7))
    assert most == 3


@pytest.mark.parametrize(
    ("ended", "message"),
    [(Invoked(), SILENT), (Invoked("KeyError: 'x'"), "KeyError: 'x'")],
    ids=["returned without a report", "failed"],
)
async def test_a_function_that_ends_without_a_report_has_its_attempt_failed_at_once(
    control: Control, ended: Invoked, message: str
) -> None:
    chain = await fan_out(control, 1)

    async def act(_invocation: Invocation) -> Invoked:
        return ended

    async with calling(control, act) as (_host, run):
        await run(lambda: all_are(control, chain, "Failed", 1))
    row = await control.pool.fetchrow("SELECT error_message, next_retry_at FROM tasks WHERE status = 'Failed'")
    assert row is not None
    assert row["error_message"] == message
    assert row["next_retry_at"] is not None


async def test_a_call_that_breaks_is_an_attempt_that_failed(control: Control) -> None:
    chain = await fan_out(control, 1)

    async def act(_invocation: Invocation) -> Invoked:
        raise RuntimeError("the line broke")

    async with calling(control, act) as (_host, run):
        await run(lambda: all_are(control, chain, "Failed", 1))
    assert (
        await control.pool.fetchval("SELECT error_message FROM tasks WHERE status = 'Failed'")
        == "RuntimeError: the line broke"
    )


async def test_while_no_runner_answers_no_attempt_is_used_up_and_one_call_at_a_time_tries(control: Control) -> None:
    chain, there = await fan_out(control, 5), False

    async def act(invocation: Invocation) -> Invoked:
        if not there:
            return Invoked("the runner does not answer", started=False)
        return await host.complete(invocation)

    async with calling(control, act) as (host, run):

        async def tried_often() -> bool:
            return len(host.invocations) >= 12

        await run(tried_often)
        assert await attempts(control, chain) == [1] * 5
        there = True

        async def done() -> bool:
            await control.expire_leases().once()
            return await all_are(control, chain, "Completed", 5)

        await run(done)


async def attempts(control: Control, chain: Chain) -> list[int]:
    rows = await control.pool.fetch("SELECT attempt FROM tasks WHERE job_id = $1", chain.jobs["second"])
    return [row["attempt"] for row in rows]


async def test_a_call_that_finds_no_free_place_is_no_attempt_and_delays_no_other_organisation(control: Control) -> None:
    full, other = await fan_out(control, 3), await fan_out(control, 2, "other")
    refused = 0

    async def act(invocation: Invocation) -> Invoked:
        nonlocal refused
        if decode(parse_token(invocation.capability_token).payload).org_id == full.org.id and refused < 20:
            refused += 1
            return Invoked("the runner has no room", started=False, busy=True)
        return await host.complete(invocation)

    async with calling(control, act) as (host, run):
        await run(lambda: all_are(control, other, "Completed", 2))
        await run(lambda: all_are(control, full, "Completed", 3))
    assert refused == 20
    assert await attempts(control, full) == [1, 1, 1]
    history = "SELECT count(*) FROM task_attempts h JOIN tasks t ON t.id = h.task_id WHERE t.job_id = $1"
    assert await control.pool.fetchval(history, full.jobs["second"]) == 3, "a claim that was undone left nothing"


async def test_no_more_are_called_than_there_are_places_by_all_replicas_and_organisations_take_turns(
    control: Control,
) -> None:
    large, small = await fan_out(control, 9), await fan_out(control, 2, "small")
    gate, inside, most, per_org = asyncio.Event(), Counter[UUID](), 0, 0

    async def act(invocation: Invocation) -> Invoked:
        nonlocal most, per_org
        org = decode(parse_token(invocation.capability_token).payload).org_id
        inside[org] += 1
        most, per_org = max(most, inside.total()), max(per_org, *inside.values())
        await gate.wait()
        inside[org] -= 1
        return await host.complete(invocation)

    host = Host(control, act, Places(total=4, per_org=3))
    replicas = [replace(control, replica=name).call_functions(host, 16) for name in ("one", "two")]
    drain = control.drain(replicas[0].signal)

    async def until_both(done: Callable[[], Awaitable[bool]]) -> None:
        async with asyncio.timeout(SECONDS):
            while not await done():
                while await drain.once() + await replicas[0].once() + await replicas[1].once():
                    pass
                await asyncio.sleep(0.01)

    async def full() -> bool:
        return inside.total() == 4

    async def over() -> bool:
        return await all_are(control, large, "Completed", 9) and await all_are(control, small, "Completed", 2)

    try:
        await until_both(full)
        assert dict(inside) == {large.org.id: 2, small.org.id: 2}, "who came first with many does not take all"
        gate.set()
        await until_both(over)
    finally:
        for replica in replicas:
            await replica.stop()
    assert most == 4
    assert per_org <= 3


async def test_an_organisation_has_no_more_calls_than_places_of_its_own(control: Control) -> None:
    chain, gate = await fan_out(control, 5), asyncio.Event()

    async def act(invocation: Invocation) -> Invoked:
        await gate.wait()
        return await host.complete(invocation)

    async with calling(control, act, capacity=Places(total=4, per_org=3)) as (host, run):

        async def three_run() -> bool:
            return len(host.invocations) == 3

        await run(three_run)  # which has begun all that it would
        assert sorted(await statuses(control, chain)) == ["Queued"] * 2 + ["Running"] * 3
        gate.set()
        await run(lambda: all_are(control, chain, "Completed", 5))


async def test_bulk_leaves_a_place_free_and_gets_its_share_while_normal_tasks_wait(control: Control) -> None:
    chain, gate, called = await fan_out(control, 60), asyncio.Event(), list[str]()
    await control.pool.execute(
        "UPDATE tasks SET priority = 'bulk' WHERE id IN (SELECT id FROM tasks WHERE job_id = $1 ORDER BY id LIMIT 10)",
        chain.jobs["second"],
    )

    async def act(invocation: Invocation) -> Invoked:
        tier = "SELECT priority::text FROM tasks WHERE id = $1"
        called.append(await control.pool.fetchval(tier, invocation.task_id))
        if called[-1] == "bulk":
            await gate.wait()
        return await host.complete(invocation)

    async with calling(control, act, capacity=Places(total=4, per_org=4)) as (host, run):

        async def normal_ones_are_over() -> bool:
            return called.count("normal") == 50

        async def all_the_room_is_used() -> bool:
            return called.count("bulk") == 3

        await run(normal_ones_are_over)
        assert "bulk" in called[:40], "it is never shut out"
        assert called[:20].count("bulk") == 0, "although its tasks have waited longer"
        await run(all_the_room_is_used)
        gate.set()
        await run(lambda: all_are(control, chain, "Completed", 60))


async def test_a_task_that_waits_for_its_place_is_not_taken_again_and_again(control: Control) -> None:
    """Its outbox entry is done when it has been seen: what waits is in the database, also for the next Dispatcher."""
    chain, gate = await fan_out(control, 3), asyncio.Event()

    async def act(invocation: Invocation) -> Invoked:
        await gate.wait()
        return await host.complete(invocation)

    async with calling(control, act, capacity=Places(1, 1)) as (host, run):

        async def first_runs() -> bool:
            return len(host.invocations) == 1

        await run(first_runs)
        entries = "SELECT DISTINCT status::text, attempts FROM outbox WHERE kind = 'enqueue_task'"
        assert [tuple(row) for row in await control.pool.fetch(entries)] == [("Done", 1)]
        assert (await statuses(control, chain)).count("Queued") == 2
    gate.set()
    async with calling(control, act, capacity=Places(1, 1)) as (host, run):

        async def all_done() -> bool:
            await control.pool.execute("UPDATE tasks SET next_retry_at = now() WHERE next_retry_at > now()")
            await control.expire_leases().once()
            return await all_are(control, chain, "Completed", 3)

        await run(all_done)


async def test_places_are_not_requested_while_nothing_waits(control: Control) -> None:
    host = Host(control, None)
    await deploy_chain(control)
    host.places = pytest.fail  # type: ignore[method-assign]
    assert await control.call_functions(host, 1).once() == 0


async def test_what_was_lost_under_a_function_is_the_platforms_fault(control: Control) -> None:
    chain = await fan_out(control, 1)

    async def act(_invocation: Invocation) -> Invoked:
        return Invoked("the runner was lost while the function ran", lost=True)

    async with calling(control, act) as (_host, run):
        await run(lambda: all_are(control, chain, "Failed", 1))
    assert await control.pool.fetchval("SELECT fault::text FROM tasks WHERE status = 'Failed'") == "platform"


async def test_a_long_function_that_runs_again_after_an_outage_delays_no_other_task(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_functions, "PROBE_SECONDS", 0.05)
    chain, there, gate = await fan_out(control, 4), False, asyncio.Event()

    async def act(invocation: Invocation) -> Invoked:
        if not there:
            return Invoked("the runner does not answer", started=False)
        if (invocation.scope.cursor or 0) == 0:
            await gate.wait()
        return await host.complete(invocation)

    async with calling(control, act) as (host, run):

        async def tried() -> bool:
            await control.expire_leases().once()
            return len(host.invocations) >= 2

        await run(tried)
        there = True

        async def others_done() -> bool:
            await control.expire_leases().once()
            return sorted(await statuses(control, chain)) == ["Completed"] * 3 + ["Running"]

        await run(others_done)
        gate.set()
        await run(lambda: all_are(control, chain, "Completed", 4))


async def test_an_attempt_that_is_over_is_called_off(control: Control) -> None:
    chain = await fan_out(control, 1)

    async def act(_invocation: Invocation) -> Invoked:
        await asyncio.Event().wait()
        raise AssertionError

    async with calling(control, act) as (host, run):

        async def runs() -> bool:
            return bool(host.invocations) and await all_are(control, chain, "Running", 1)

        await run(runs)
        await cancel_task(control, chain.org.id, host.invocations[0].task_id, "enough")

        async def ended() -> bool:
            return host.ended == [host.invocations[0].task_id]

        await run(ended)
    assert await statuses(control, chain) == ["Canceled"]


async def test_the_lease_of_a_silent_function_is_renewed_while_it_runs(control: Control) -> None:
    chain, gate = await fan_out(control, 1), asyncio.Event()

    async def act(invocation: Invocation) -> Invoked:
        await gate.wait()
        return await host.complete(invocation)

    async with calling(control, act) as (host, run):

        async def runs() -> bool:
            return bool(host.invocations)

        await run(runs)
        await control.pool.execute(
            "UPDATE tasks SET lease_expires_at = now() + interval '1 s' WHERE status = 'Running'"
        )

        async def renewed() -> bool:
            sql = "SELECT lease_expires_at > now() + interval '1 minute' FROM tasks WHERE status = 'Running'"
            return bool(await control.pool.fetchval(sql))

        await run(renewed)
        gate.set()
        await run(lambda: all_are(control, chain, "Completed", 1))


async def test_a_dispatcher_that_stops_ends_its_functions_and_puts_their_tasks_back(control: Control) -> None:
    chain = await fan_out(control, 2)

    async def act(_invocation: Invocation) -> Invoked:
        await asyncio.Event().wait()
        raise AssertionError

    async with calling(control, act) as (host, run):

        async def run_both() -> bool:
            return len(host.invocations) == 2

        await run(run_both)
    assert len(host.ended) == 2
    assert await all_are(control, chain, "Failed", 2)
    left = await control.pool.fetch(
        "SELECT max_attempts - (attempt - platform_failures) AS left, next_retry_at FROM tasks WHERE status = 'Failed'"
    )
    assert all(row["left"] == 3 and row["next_retry_at"] for row in left)


async def test_functions_of_a_process_that_is_no_more_are_put_back_at_once(control: Control) -> None:
    chain = await deploy_chain(control)
    gone, alive, elsewhere = [(await claimed(control, await a_task(control, chain)))[0] for _ in range(3)]
    pids = {gone.task.task_id: 2**22 + 1, alive.task.task_id: os.getppid()}
    for task, pid in pids.items():
        await control.pool.execute("UPDATE tasks SET worker_id = $2 WHERE id = $1", task, f"function of here:{pid}")
    away = "UPDATE tasks SET worker_id = 'function of there:4194305' WHERE id = $1"
    await control.pool.execute(away, elsewhere.task.task_id)
    functions = replace(control, replica="here:1").call_functions(Host(control, None), 1)
    assert await functions.put_back_orphans() == 1
    sql = "SELECT status::text, platform_failures, fault::text, next_retry_at FROM tasks WHERE id = $1"
    row = await control.pool.fetchrow(sql, gone.task.task_id)
    assert row is not None
    assert (row["status"], row["platform_failures"], row["fault"]) == ("Failed", 1, "platform")
    assert row["next_retry_at"] is not None
    for item in (alive, elsewhere):
        assert (
            await control.pool.fetchval("SELECT status::text FROM tasks WHERE id = $1", item.task.task_id) == "Running"
        )


FORGERIES = ({"attempt": 2}, {"lease_token": UUID(int=7)})


@pytest.mark.parametrize("forged", [*FORGERIES, None], ids=["attempt", "token", "ended"])
async def test_only_an_attempt_that_runs_can_be_put_back(control: Control, forged: dict[str, Any] | None) -> None:
    chain = await deploy_chain(control)
    task, claims = await claimed(control, await a_task(control, chain))
    if forged is None:
        await control.completer()(completion(task), claims)
    fence = {"attempt": task.attempt, "lease_token": task.lease_token, **(forged or {})}
    args = task.task.task_id, fence["attempt"], fence["lease_token"], "nothing has run", 1.0, ""
    assert await control.pool.fetchrow(queries("lifecycle")["put_back"], *args) is None
    assert await control.pool.fetchval(queries("functions")["release"], *args[:3]) == 0
    state = await control.pool.fetchval("SELECT status::text FROM tasks")
    assert state == ("Completed" if forged is None else "Running")


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
