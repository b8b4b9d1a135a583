"""Functions run in a limited number of places, which organisations and tiers share."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from uuid import UUID

import pytest

from tests.support.dispatcher.functions import Host, all_are, attempts, calling, fan_out, statuses
from tests.support.dispatcher.job_chain import deploy_chain
from tests.support.waiting import SECONDS
from tracelake.capability.claims import decode
from tracelake.capability.jws import parse_token
from tracelake.dispatcher.control import Control
from tracelake.ports import Invoked, Places
from tracelake.wire.task.lifecycle import Invocation

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("eager")]


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
