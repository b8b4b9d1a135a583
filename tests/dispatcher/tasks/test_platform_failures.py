"""Attempts that the platform ended count against a limit of their own; a task that failed permanently is reported."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.support.dispatcher.job_chain import a_task, claimed, completion, deploy_chain, expire, retry_now, status
from tests.support.metrics import counted
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.runtimes.call_functions import put_back
from tracelake.dispatcher.tasks.show import show_task
from tracelake.dispatcher.why.explain import explain_task
from tracelake.domain.task import Backoff, retry_delay
from tracelake.wire.task.lifecycle import Claimed, ClaimRequest

pytestmark = pytest.mark.anyio


async def faults(control: Control, task_id: object) -> list[str | None]:
    sql = "SELECT fault::text FROM task_attempts WHERE task_id = $1 ORDER BY attempt"
    return [row["fault"] for row in await control.pool.fetch(sql, task_id)]


async def claimed_again(control: Control, task_id: Any) -> tuple[Claimed, Any]:
    await retry_now(control, task_id)
    await control.pool.execute("UPDATE tasks SET woken_at = now() WHERE id = $1", task_id)
    return await claimed(control, task_id)


FAILS = {"status": "Failed", "error_message": "no luck"}


async def test_attempts_that_the_platform_ended_do_not_use_up_the_jobs_own(control: Control) -> None:
    """Leases run out and the platform fails, more often than `max_attempts`; then the job itself fails."""
    chain, complete = await deploy_chain(control), control.completer()
    task, claims = await claimed(control, await a_task(control, chain))
    id_ = task.task.task_id
    for code in (None, None, "busy", "unavailable", "query_timeout", "provider_unavailable", "database_unavailable"):
        if code is None:
            await expire(control, id_)
        else:
            answer = await complete(completion(task, **FAILS, error_code=code), claims)
            assert answer.next_retry_at is not None, code
        task, claims = await claimed_again(control, id_)
    for last in (False, False, True):
        answer = await complete(completion(task, **FAILS, error_code="work_failed"), claims)
        assert (answer.next_retry_at is None) == last
        if not last:
            task, claims = await claimed_again(control, id_)
    assert await faults(control, id_) == ["platform"] * 7 + ["job"] * 3
    shown = await show_task(control.pool, chain.org.id, id_)
    assert (shown.attempt, shown.max_attempts, shown.platform_failures, shown.fault) == (10, 3, 7, "job")
    verdict = (await explain_task(control.pool, chain.org.id, id_)).verdict
    assert "Attempt 10 (3 of 3 that count; 7 more ended by the platform's fault)" in verdict


async def test_a_code_of_the_platform_does_not_count_where_the_failure_is_said_to_be_final(control: Control) -> None:
    chain = await deploy_chain(control)
    task, claims = await claimed(control, await a_task(control, chain))
    final = completion(task, **FAILS, error_code="query_timeout", retryable=False)
    answer = await control.completer()(final, claims)
    assert answer.next_retry_at is None
    assert await faults(control, task.task.task_id) == ["job"]


async def test_the_platforms_failures_have_a_limit_of_their_own_and_its_end_is_said(control: Control) -> None:
    chain = await deploy_chain(control)
    await control.pool.execute("UPDATE jobs SET max_platform_failures = 2")
    task, _ = await claimed(control, await a_task(control, chain))
    await expire(control, task.task.task_id)
    await claimed_again(control, task.task.task_id)
    with capture_logs() as lines:
        await expire(control, task.task.task_id)
    assert await status(control, task.task.task_id) == "Failed"
    why = await explain_task(control.pool, chain.org.id, task.task.task_id)
    assert why.stopped is not None
    assert why.stopped.rule == "failed_for_good"
    assert "platform failure 2 of 2; not counted against max_attempts" in why.verdict
    assert failed_for_good(control, "platform") == 1
    (line,) = [item for item in lines if item["log_level"] == "error"]
    assert (line["event"], line["task"], line["fault"]) == ("task failed for good", str(task.task.task_id), "platform")


async def lost(control: Control, task_id: Any, worker: str, beside: Any = None) -> datetime | None:
    """The next attempt is claimed by this worker, alone or beside another task, and the worker sends no heartbeat.
    When the task is due again.
    """
    tasks = [task_id, *([beside] if beside is not None else [])]
    retry = "UPDATE tasks SET next_retry_at = now() WHERE id = ANY ($1::uuid[]) AND status = 'Failed'"
    await control.pool.execute(retry, tasks)
    await control.expire_leases().once()
    await control.pool.execute("UPDATE tasks SET woken_at = now() WHERE id = ANY ($1::uuid[])", tasks)
    await control.claimer().claim([ClaimRequest(task_id=task, worker_id=worker) for task in tasks])
    silent = "UPDATE tasks SET lease_expires_at = now() - interval '1 s' WHERE id = ANY ($1::uuid[])"
    await control.pool.execute(silent, tasks)
    assert await control.expire_leases().once() == len(tasks)
    due: datetime | None = await control.pool.fetchval("SELECT next_retry_at FROM tasks WHERE id = $1", task_id)
    return due


async def test_a_task_that_ends_each_worker_on_which_it_runs_alone_fails_for_good_long_before_the_limit(
    control: Control,
) -> None:
    chain, few = await deploy_chain(control), replace(control, max_workers_lost=3)
    task = await a_task(few, chain)
    assert [await lost(few, task, f"w{n}") is None for n in range(3)] == [False, False, True]
    why = await explain_task(control.pool, chain.org.id, task)
    assert "3 workers were lost while they ran this task and nothing else" in why.verdict


async def test_a_task_that_is_lost_beside_others_is_not_taken_for_the_cause(control: Control) -> None:
    chain, few = await deploy_chain(control), replace(control, max_workers_lost=2)
    task, beside = await a_task(few, chain), await a_task(few, chain)
    assert all([await lost(few, task, "w", beside) for _ in range(4)])
    await control.pool.execute("UPDATE tasks SET next_retry_at = now() + interval '1 h' WHERE id = $1", beside)
    assert await lost(few, task, "w2") is not None, "alone for the first time"
    assert await lost(few, task, "w2") is None, "and again"


async def test_the_waits_after_platform_failures_grow_whichever_process_reported_them(control: Control) -> None:
    """Of leases that ran out and of attempts that are put back alike; up to the longest wait of the job."""
    chain = await deploy_chain(control)
    await control.pool.execute("UPDATE jobs SET retry_backoff_seconds = 4, retry_backoff_max_seconds = 100")
    wait = "SELECT extract(epoch FROM next_retry_at - completed_at)::float8 FROM tasks WHERE id = $1"
    silent, put = await a_task(control, chain), await a_task(control, chain)
    waits: dict[Any, list[float]] = {silent: [], put: []}
    for n in range(9):
        await lost(control, silent, f"w{n}")
        task, _ = await claimed_again(control, put) if n else await claimed(control, put)
        assert await put_back(control.completer(), (put, task.attempt, task.lease_token), "its runner was lost")
        for item, seen in waits.items():
            seen.append(await control.pool.fetchval(wait, item))
    for first, seen in ((4, waits[silent]), (0.5, waits[put])):
        steps = [min(first * 2**n, 100) for n in range(9)]
        assert all(step / 2 <= waited <= step for waited, step in zip(seen, steps, strict=True)), seen


async def test_postgres_and_the_domain_agree_how_long_a_retry_waits(control: Control) -> None:
    rows = await control.pool.fetch(
        "SELECT n, extract(epoch FROM retry_wait(30, 600, n))::float8 AS wait FROM generate_series(1, 200) n"
    )
    for row in rows:
        shortest, longest = (retry_delay(row["n"], Backoff(30, 600), chance) for chance in (0, 1))
        assert shortest <= row["wait"] <= longest


def failed_for_good(control: Control, fault: str) -> float | None:
    labels = {"dag": "chain", "job": "first", "fault": fault}
    return counted(control.metrics, "trace_tasks_failed_total", **labels) or None


async def test_a_failure_of_the_jobs_own_that_is_final_is_counted_and_logged_once(control: Control) -> None:
    chain, complete = await deploy_chain(control), control.completer()
    task, claims = await claimed(control, await a_task(control, chain))
    request = completion(task, **FAILS, retryable=False)
    with capture_logs() as lines:
        await complete(request, claims)
        await complete(request, claims)
    assert [item["event"] for item in lines if item["log_level"] == "error"] == ["task failed for good"]
    assert failed_for_good(control, "job") == 1


async def test_a_late_failure_says_anew_whose_fault_the_end_was(control: Control) -> None:
    chain = await deploy_chain(control)
    task, claims = await claimed(control, await a_task(control, chain))
    await expire(control, task.task.task_id)
    await control.completer()(completion(task, **FAILS), claims)
    assert await faults(control, task.task.task_id) == ["job"]
    assert await control.pool.fetchval("SELECT platform_failures FROM tasks WHERE id = $1", task.task.task_id) == 0


@pytest.mark.parametrize(("silent", "outcome"), [(5, ("TimedOut", "job")), (300, ("LeaseExpired", "platform"))])
async def test_an_attempt_with_heartbeats_until_its_timeout_counts_and_one_that_fell_silent_was_lost(
    control: Control, silent: int, outcome: tuple[str, str]
) -> None:
    chain = await deploy_chain(control)
    task, _ = await claimed(control, await a_task(control, chain))
    await control.pool.execute(
        "UPDATE tasks SET started_at = now() - interval '2 hours', last_heartbeat = now() - make_interval(secs => $2),"
        " lease_expires_at = now() - interval '1 hour' WHERE id = $1",
        task.task.task_id,
        silent,
    )
    assert await control.expire_leases().once() == 1
    row = await control.pool.fetchrow("SELECT outcome::text, fault::text FROM task_attempts")
    assert row is not None
    assert tuple(row) == outcome
