"""Backpressure with the real Dispatcher: a queue that is too long or too old pauses what is upstream of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from tests.support.dispatcher.control import PULL, Org, an_org, control_for, deployed_and_active
from tests.support.dispatcher.job_chain import claimed, completion, drained
from tests.support.operators import registered
from tests.support.verbs import invalidate, pause_job, resume_job, trigger
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.flow.apply_pressure import ApplyPressure
from tracelake.dispatcher.flow.list_pauses import list_pauses
from tracelake.dispatcher.sources.keep_running import KeepSourcesRunning
from tracelake.dispatcher.why.explain import explain_dataset
from tracelake.settings import FlowSettings
from tracelake.store.identity import User
from tracelake.wire.task.outputs import EventBody

pytestmark = pytest.mark.anyio

OPERATORS = {"pull": PULL}

SHOP = """
name: shop
defaults: {runtime: ecs_platform}
jobs:
  - {name: ask, operator: pull, source: {kind: manual}}
  - {name: load, operator: pull, inputs: [{from: {job: ask}}]}
  - {name: clean, operator: pull, inputs: [{from: {job: load}}]}
publish: {asked: {job: ask}, cleaned: {job: clean}}
"""
REPORT = """
name: report
defaults: {runtime: ecs_platform}
jobs:
  - {name: slow, operator: pull, max_queue_depth: 4, inputs: [{from: {dataset: cleaned}}]}
"""


async def a_pass(control: Control, *, release: int = 1000) -> int:
    """One pass of the loop, and what follows from it."""
    flow = ApplyPressure(control.pool, control.after_commit, FlowSettings(release_queue_depth=release))
    released = await flow.once()
    await drained(control)
    return released


async def ask(control: Control, org: Org, cursors: Iterable[int], *, dag: str = "shop", job: str = "ask") -> None:
    for cursor in cursors:
        await trigger(control, org.id, dag, job, cursor=cursor, request_id=uuid4())
    await drained(control)


async def queued(control: Control, job: str) -> list[int | None]:
    """The cursors of a job's queued tasks, in the order in which they were created."""
    rows = await control.pool.fetch(
        "SELECT (t.input_versions ->> 'cursor')::int FROM tasks t JOIN jobs j ON j.id = t.job_id"
        " JOIN dag_current_versions c ON c.dag_version_id = j.dag_version_id"
        " WHERE j.name = $1 AND t.status = 'Queued' ORDER BY t.id",
        job,
    )
    return [cursor for (cursor,) in rows]


async def held(control: Control, job: str) -> list[int | None]:
    rows = await control.pool.fetch(
        "SELECT e.cursor_value FROM held_events h JOIN jobs j ON j.id = h.job_id"
        " JOIN dag_current_versions c ON c.dag_version_id = j.dag_version_id"
        " LEFT JOIN events e ON e.id = h.event_id WHERE j.name = $1 ORDER BY h.seq",
        job,
    )
    return [cursor for (cursor,) in rows]


async def run(control: Control, job: str, most: int = 1000) -> int:
    """Runs queued tasks of a job, each of which emits the cursor that it was created for."""
    rows = await control.pool.fetch(
        "SELECT t.id, (t.input_versions ->> 'cursor')::int, j.output_datasets[1], s.dataset_version"
        " FROM tasks t JOIN jobs j ON j.id = t.job_id"
        " LEFT JOIN dag_version_datasets s"
        "   ON s.dag_version_id = j.dag_version_id AND s.dataset_uuid = j.output_datasets[1]"
        " WHERE j.name = $1 AND t.status = 'Queued' AND t.woken_at IS NOT NULL ORDER BY t.id LIMIT $2",
        job,
        most,
    )
    for task, cursor, dataset, version in rows:
        lease, claims = await claimed(control, task)
        event = EventBody(dataset_uuid=dataset, dataset_version=version, cursor=cursor)
        request = completion(lease, events=[event] if cursor is not None else [])
        await control.completer()(request, claims)
    await drained(control)
    return len(rows)


async def paused(control: Control, org: Org) -> dict[str, str]:
    return {f"{pause.dag}.{pause.job}": pause.because for pause in (await list_pauses(control.pool, org.id)).pauses}


async def make_long(control: Control, org: Org, cursors: Iterable[int] = range(4)) -> None:
    """As many tasks of `report.slow` as its queue may have."""
    await ask(control, org, cursors)
    for job in ("load", "clean"):
        await run(control, job)


async def test_a_long_queue_pauses_everything_upstream_over_all_dags(control: Control, org: Org) -> None:
    await deployed_and_active(control, org, SHOP)
    await deployed_and_active(control, org, REPORT)
    await make_long(control, org, range(3))
    await a_pass(control)
    assert await paused(control, org) == {}
    await make_long(control, org, [3])
    await a_pass(control)
    because = "paused because 4 tasks of report.slow were queued (limit 4)"
    assert await paused(control, org) == dict.fromkeys(("shop.ask", "shop.load", "shop.clean"), because)


async def test_events_of_paused_jobs_wait_and_become_tasks_in_order_when_the_queue_is_short(
    control: Control, org: Org
) -> None:
    await deployed_and_active(control, org, SHOP)
    await deployed_and_active(control, org, REPORT)
    await make_long(control, org)
    await a_pass(control)
    await ask(control, org, [9, 5, 7])
    assert await queued(control, "load") == []
    assert await held(control, "load") == [9, 5, 7]
    await run(control, "slow", 2)
    await a_pass(control)  # 2 are left, which is not below half of 4
    assert await held(control, "load") == [9, 5, 7]
    await run(control, "slow", 1)
    assert await a_pass(control) == 3
    assert await paused(control, org) == {}
    assert await queued(control, "load") == [9, 5, 7]
    assert await held(control, "load") == []


async def test_a_task_that_a_paused_job_has_already_is_run(control: Control, org: Org) -> None:
    await deployed_and_active(control, org, SHOP)
    await deployed_and_active(control, org, REPORT)
    await ask(control, org, range(5))
    await run(control, "load")
    await run(control, "clean", 4)
    await a_pass(control)
    assert "shop.clean" in await paused(control, org)
    assert await run(control, "clean") == 1
    assert await queued(control, "slow") == [0, 1, 2, 3, 4]


async def test_what_comes_while_older_events_wait_for_the_same_job_does_not_overtake_them(
    control: Control, org: Org
) -> None:
    await deployed_and_active(control, org, SHOP)
    user = User(org.user, org.id, "acme", None, "admin")
    await pause_job(control, user, "shop", "load")
    await ask(control, org, range(5))
    await resume_job(control, user, "shop", "load")
    await a_pass(control, release=2)
    assert (await queued(control, "load"), await held(control, "load")) == ([0, 1], [2, 3, 4])
    await ask(control, org, [9])
    assert (await queued(control, "load"), await held(control, "load")) == ([0, 1], [2, 3, 4, 9])
    while await held(control, "load"):
        await run(control, "load")
        await a_pass(control, release=2)
    await run(control, "load")
    created = await control.pool.fetch(
        "SELECT (t.input_versions ->> 'cursor')::int FROM tasks t JOIN jobs j ON j.id = t.job_id"
        " WHERE j.name = 'load' ORDER BY t.id"
    )
    assert [cursor for (cursor,) in created] == [0, 1, 2, 3, 4, 9]


async def test_a_task_that_has_waited_too_long_pauses_and_the_next_younger_one_does_not(
    control: Control, org: Org
) -> None:
    await deployed_and_active(control, org, SHOP)
    await deployed_and_active(control, org, REPORT.replace("max_queue_depth: 4", "max_queue_age: 1h"))
    await make_long(control, org)
    await a_pass(control)
    assert await paused(control, org) == {}
    await control.pool.execute("UPDATE tasks SET queued_at = now() - interval '2 h' WHERE status = 'Queued'")
    await a_pass(control)
    because = await paused(control, org)
    assert because["shop.load"] == "paused because a task of report.slow had been queued for 7,200 s (limit 3,600 s)"
    await control.pool.execute("UPDATE tasks SET queued_at = now() - interval '20 min' WHERE status = 'Queued'")
    await a_pass(control)
    assert await paused(control, org) == {}


async def test_bulk_work_gives_way_at_half_of_the_limit(control: Control, org: Org) -> None:
    await deployed_and_active(control, org, SHOP.replace("{name: load,", "{name: load, priority: bulk,"))
    await deployed_and_active(control, org, REPORT)
    await make_long(control, org, range(2))
    await a_pass(control)
    assert set(await paused(control, org)) == {"shop.load"}
    await ask(control, org, [7])
    assert await held(control, "load") == [7]


async def test_an_invalidation_for_a_paused_job_waits_in_its_turn(control: Control, org: Org) -> None:
    await deployed_and_active(control, org, SHOP)
    user = User(org.user, org.id, "acme", None, "admin")
    await pause_job(control, user, "shop", "load")
    await ask(control, org, [1])
    await invalidate(control, org.id, org.user, "asked", start=0, end=9, reason="a test", request_id=uuid4())
    await drained(control)
    assert await queued(control, "load") == []
    await resume_job(control, user, "shop", "load")
    assert await a_pass(control) == 2
    kinds = await control.pool.fetch(
        "SELECT invalidation_id IS NOT NULL, partitions FROM tasks WHERE status = 'Queued' ORDER BY id"
    )
    assert [tuple(kind) for kind in kinds] == [(False, None), (True, ["0-9"])]
    share = await control.pool.fetchval(
        "SELECT count(*) FROM data_invalidation_jobs i JOIN tasks t ON t.id = i.task_id"
    )
    assert share == 1


async def test_an_always_on_source_upstream_of_a_long_queue_stops_and_starts_again(control: Control, org: Org) -> None:
    await deployed_and_active(control, org, SHOP.replace("{kind: manual}", "{kind: always_on}"))
    await deployed_and_active(control, org, REPORT)
    sources = KeepSourcesRunning(control.pool, control.after_commit)

    async def state() -> str:
        while await sources.once():
            pass
        await drained(control)
        return str(await control.pool.fetchval("SELECT state::text FROM sources"))

    assert await state() == "Running"
    task = await control.pool.fetchval("SELECT task_id FROM sources")
    lease, claims = await claimed(control, task)
    slow = await control.pool.fetchval("SELECT id FROM jobs WHERE name = 'slow'")
    await control.pool.execute(
        "INSERT INTO tasks (org_id, job_id, dedupe_key, timeout_seconds, woken_at)"
        " SELECT $1, $2, n::text, 3600, now() FROM generate_series(1, 4) AS n",
        org.id,
        slow,
    )
    await a_pass(control)
    assert await state() == "Draining"
    await control.completer()(completion(lease), claims)
    assert await state() == "Pending"
    await control.pool.execute(
        "UPDATE tasks SET status = 'Canceled', completed_at = now(), cancel_reason = 'x' WHERE job_id = $1", slow
    )
    await a_pass(control)
    assert await state() == "Running"


async def test_what_waits_moves_to_the_same_job_of_the_next_version(control: Control, org: Org) -> None:
    await deployed_and_active(control, org, SHOP)
    user = User(org.user, org.id, "acme", None, "admin")
    await pause_job(control, user, "shop", "load")
    await pause_job(control, user, "shop", "clean")
    await ask(control, org, [3, 1, 2])
    await deployed_and_active(control, org, SHOP.replace("{name: load,", "{name: load, max_attempts: 7,"))
    assert await held(control, "load") == [3, 1, 2]
    await resume_job(control, user, "shop", "load")
    await a_pass(control)
    assert await queued(control, "load") == [3, 1, 2]
    await deployed_and_active(
        control, org, SHOP.replace("name: load", "name: fetch").replace("job: load", "job: fetch")
    )
    await a_pass(control)
    assert await control.pool.fetchval("SELECT count(*) FROM held_events") == 0


async def test_a_job_paused_by_hand_stays_paused_over_deploys_and_why_says_so(control: Control, org: Org) -> None:
    await deployed_and_active(control, org, SHOP)
    user = User(org.user, org.id, "acme", None, "admin")
    assert (await pause_job(control, user, "shop", "clean")).changed
    assert not (await pause_job(control, user, "shop", "clean")).changed
    await deployed_and_active(control, org, SHOP.replace("{name: load,", "{name: load, max_attempts: 7,"))
    await ask(control, org, [1])
    await run(control, "load")
    await a_pass(control)
    assert await held(control, "clean") == [1]
    explained = await explain_dataset(control.pool, user, "cleaned")
    assert explained.stopped is not None
    assert explained.stopped.sentence == "shop.clean is paused by hand; 1 event waits."
    assert (await resume_job(control, user, "shop", "clean")).changed
    await a_pass(control)
    assert await queued(control, "clean") == [1]


async def test_two_replicas_release_each_event_once(state_db: str, queue_db: str, tmp_path: Path) -> None:
    with registered(pull=PULL):
        async with (
            control_for(state_db, queue_db, tmp_path) as control,
            control_for(state_db, queue_db, tmp_path, replica="two") as other,
        ):
            org = await an_org(control.pool)
            await deployed_and_active(control, org, SHOP)
            user = User(org.user, org.id, "acme", None, "admin")
            await pause_job(control, user, "shop", "load")
            await ask(control, org, range(40))
            await resume_job(control, user, "shop", "load")
            flows = [ApplyPressure(item.pool, item.after_commit, FlowSettings()) for item in (control, other)]
            released = await asyncio.gather(*(flow.once() for flow in flows * 4))
            assert sum(released) == 40
            assert await queued(control, "load") == list(range(40))
            assert {UUID(str(item)) for (item,) in await control.pool.fetch("SELECT job_id FROM held_events")} == set()


COLLECTS = """
name: shop
defaults: {runtime: ecs_platform}
jobs:
  - {name: ask, operator: pull, source: {kind: manual}}
  - {name: load, operator: pull, inputs: [{from: {job: ask}}]}
  - {name: slow, operator: pull, max_queue_depth: 1, inputs: [{from: {job: load}}]}
  - {name: join, operator: range_aggregator, runtime: dispatcher, config: {size: 10}, inputs: [{from: {job: load}}]}
  - {name: after, operator: pull, inputs: [{from: {job: join}}]}
"""


async def test_what_an_aggregator_has_collected_is_sent_while_all_that_it_reads_is_paused(
    control: Control, org: Org
) -> None:
    await deployed_and_active(control, org, COLLECTS)
    await ask(control, org, [3])
    await run(control, "load")
    assert await parts(control, "after") == [], "the first ten are not complete"
    for _ in range(3):
        await a_pass(control)  # which pauses `load`, because a task of `slow` is queued
        assert await parts(control, "after") == ["0-3"], "once for this pause"
    await run(control, "slow")
    await a_pass(control)
    await ask(control, org, [12])
    await run(control, "load")
    assert await parts(control, "after") == ["0-3", "4-9"], "and of the rest nothing twice"
    await a_pass(control)
    assert await parts(control, "after") == ["0-3", "4-9", "10-12"], "it is another pause"


async def parts(control: Control, job: str) -> list[str]:
    sql = "SELECT t.partitions[1] AS part FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = $1 ORDER BY t.id"
    return [row["part"] for row in await control.pool.fetch(sql, job)]
