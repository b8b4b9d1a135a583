"""Tasks of `runtime: lambda`: claimed by the Dispatcher, sent to a function, and over when the function is.

The function and what runs it are not ours: here they are a port that does what the test says, and, for the adapter, a
server that answers as Lambda's Invoke call does.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from tests.support.dispatcher.functions import Host, all_are, attempts, calling, fan_out, statuses
from tests.support.dispatcher.job_chain import a_task, claimed, completion, deploy_chain
from tests.support.verbs import cancel_task
from tracelake.capability.claims import decode
from tracelake.capability.jws import parse_token
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.runtimes import call_functions
from tracelake.dispatcher.runtimes.call_functions import SILENT
from tracelake.ports import Invoked
from tracelake.store.queries import queries
from tracelake.wire.task.lifecycle import Invocation

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("eager")]


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
