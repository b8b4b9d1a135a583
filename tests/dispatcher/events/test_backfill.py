"""Gaps are what jobs have not processed, and a backfill creates exactly that work, within its budget."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support.dispatcher.control import PULL, Org, control_for, deployed_and_active
from tests.support.dispatcher.mill import asked
from tests.support.dispatcher.run_tasks import claim_one, drain, finish, settle
from tests.support.verbs import activate_dag, deploy_dag
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.flow.set_limits import set_limits
from tracelake.dispatcher.tasks.show import show_task
from tracelake.dispatcher.versions.gaps import list_gaps
from tracelake.dispatcher.versions.run_backfills import RunBackfills
from tracelake.dispatcher.versions.show_backfills import (
    BYTES,
    FEW_BYTES,
    FEW_REQUESTS,
    REQUESTS,
    change_backfill,
    list_backfills,
    show_backfill,
)
from tracelake.dispatcher.versions.start_backfill import start_backfill
from tracelake.errors import Conflict, InvalidRequest, NotFound, TraceError
from tracelake.settings import RUNTIMES, LoopSettings, OperatorSettings
from tracelake.store.identity import find_user
from tracelake.wire.user.backfills import BackfillAnswer, BackfillBudget, BackfillRequest, BackfillRow, Gaps, GapsQuery

pytestmark = pytest.mark.anyio

OPERATORS = {"pull": PULL}

DAG = """
name: mill
defaults: {runtime: ecs_platform}
jobs:
  - {name: ask, operator: pull, source: {kind: manual}}
  - {name: grind, operator: pull, config: {n: 1}, inputs: [{from: {job: ask}}]}
  - {name: bake, operator: pull, config: {n: 1}, inputs: [{from: {job: grind}}]}
  - {name: warn, operator: pull, inputs: [{from: {job: grind}}], outputs: [{dataset: alerts}]}
publish:
  flour: {job: grind}
  alerts: {storage: postgres, write_mode: buffered, columns: {id: text}, unique_key: [id]}
"""
OTHER_BAKE = DAG.replace("bake, operator: pull, config: {n: 1}", "bake, operator: pull, config: {n: 2}")


async def gaps(control: Control, org: Org, of: str = "mill") -> Gaps:
    return await list_gaps(control.pool, org.as_user, GapsQuery(of=of))


async def start(control: Control, org: Org, dag: str = "mill", **request: Any) -> BackfillAnswer:
    user = await find_user(control.pool, "test|acme")
    assert user is not None
    assert user.org_id == org.id
    return await start_backfill(control.pool, control.after_commit.backfills, user, dag, BackfillRequest(**request))


async def started(control: Control, org: Org, **request: Any) -> BackfillRow:
    answer = await start(control, org, **request)
    assert answer.backfill is not None
    return answer.backfill


async def step(control: Control, **settings: Any) -> int:
    return await RunBackfills(control.pool, control.after_commit, LoopSettings(**settings)).once()


async def run(control: Control) -> None:
    while await step(control):
        pass


async def a_version_behind(control: Control, org: Org) -> None:
    """`bake` of a new version has processed nothing of 0-49, and does not catch up by itself."""
    await deployed_and_active(control, org, DAG)
    await asked(control, org, *((n, n + 9) for n in range(0, 50, 10)))
    await settle(control)
    changed = await deploy_dag(control, org.id, org.user, OTHER_BAKE)
    await activate_dag(control, org.id, "mill", changed.dag_version_id)
    await control.pool.execute("DELETE FROM catch_ups")


async def queued(control: Control) -> list[str]:
    rows = await control.pool.fetch(
        "SELECT t.partitions[1] AS key FROM outbox o JOIN tasks t ON t.id = (o.payload ->> 'task_id')::uuid"
        " WHERE t.status = 'Queued' ORDER BY o.id"
    )
    return [row["key"] for row in rows]


async def test_gaps_are_empty_when_everything_was_processed(control: Control, org: Org) -> None:
    await deployed_and_active(control, org, DAG)
    await asked(control, org, (0, 9))
    await settle(control)
    assert await gaps(control, org) == Gaps(of="mill", complete=True, inputs=[], checked=3)


async def test_what_is_planned_is_done_or_pending_or_failed(control: Control, org: Org) -> None:
    await a_version_behind(control, org)
    await started(control, org, job="bake", start=0, end=29)
    await run(control)
    await drain(control)
    await settle(control, fails=lambda task: task.task.scope.start == 10)
    await started(control, org, job="bake", start=30, end=39)
    await run(control)
    (found,) = (await gaps(control, org, "mill.bake")).inputs
    assert (found.planned, found.done, found.pending, found.failed) == (5, 2, 2, 1)
    shown = [(gap.state, gap.scope) for gap in found.gaps]
    assert shown == [("failed", "10-19"), ("pending", "30-39"), ("missing", "40-49")]


async def test_gaps_of_a_dataset_are_those_of_its_writers(control: Control, org: Org) -> None:
    await deployed_and_active(control, org, DAG)
    await asked(control, org, (0, 9), (10, 19))
    await drain(control)
    (found,) = (await gaps(control, org, "flour")).inputs
    assert (found.job, found.input, found.pending, [gap.scope for gap in found.gaps]) == (
        "grind",
        "ask[0]",
        2,
        ["0-19"],
    )


async def test_a_job_with_outside_effects_lacks_nothing_of_before(control: Control, org: Org) -> None:
    await deployed_and_active(control, org, DAG.replace("  - {name: warn", "  - {name: late"))
    await asked(control, org, (0, 9))
    await settle(control)
    await deployed_and_active(control, org, DAG)
    await settle(control)
    assert (await gaps(control, org)).complete


async def test_a_backfill_processes_its_range_and_nothing_else(control: Control, org: Org) -> None:
    await a_version_behind(control, org)
    dry = await start(control, org, job="bake", start=10, end=29, dry_run=True)
    assert (dry.planned, dry.backfill, await queued(control)) == (2, None, [])
    backfill = await started(control, org, job="bake", start=10, end=29)
    await run(control)
    assert await queued(control) == ["10-19", "20-29"]
    done = await show_backfill(control.pool, org.id, backfill.id)
    assert (done.status, done.ended_because, done.planned, done.created) == ("Done", "complete", 2, 2)
    assert done.open_tasks == 2


async def test_a_backfill_of_what_is_there_does_nothing_unless_it_is_to_be_done_again(
    control: Control, org: Org
) -> None:
    await deployed_and_active(control, org, DAG)
    await asked(control, org, (0, 9), (10, 19))
    await settle(control)
    answer = await start(control, org, job="bake", start=0, end=19)
    assert (answer.planned, answer.there, answer.backfill) == (0, 2, None)
    for _ in range(2):  # also a second time
        await started(control, org, job="bake", start=0, end=9, again=True)
        await run(control)
        assert await queued(control) == ["0-9"]
        assert await settle(control) == 1
    assert (await gaps(control, org)).complete


async def test_a_failed_task_is_repeated_by_a_backfill_that_does_it_again(control: Control, org: Org) -> None:
    await deployed_and_active(control, org, DAG)
    await asked(control, org, (0, 9))
    await settle(control, fails=lambda task: task.task.job.name == "bake")
    assert (await start(control, org, job="bake", start=0, end=9)).backfill is None
    await started(control, org, job="bake", start=0, end=9, again=True)
    await run(control)
    assert await settle(control) == 1


async def test_the_newest_come_first(control: Control, org: Org) -> None:
    await a_version_behind(control, org)
    await started(control, org, job="bake", start=0, end=49, order="newest")
    await run(control)
    assert await queued(control) == ["40-49", "30-39", "20-29", "10-19", "0-9"]


async def resumed(control: Control, org: Org, backfill: BackfillRow, **budget: Any) -> BackfillRow:
    signal, given = control.after_commit.backfills, BackfillBudget(**budget)
    return await change_backfill(control.pool, signal, org.id, backfill.id, "Running", budget=given)


async def shown(control: Control, org: Org, backfill: BackfillRow) -> BackfillRow:
    return await show_backfill(control.pool, org.id, backfill.id)


async def test_a_backfill_stops_with_its_budget_and_goes_on_with_a_larger_one(control: Control, org: Org) -> None:
    await a_version_behind(control, org)
    backfill = await started(control, org, job="bake", start=0, end=49, tasks=2)
    await run(control)
    assert await queued(control) == ["0-9", "10-19"]
    stopped = await shown(control, org, backfill)
    assert (stopped.status, stopped.stopped_because) == ("Paused", "the tasks of its budget were created")
    for budget in ({}, {"tasks": 2}):
        with pytest.raises(Conflict, match="2 tasks are used, and the budget is 2"):
            await resumed(control, org, backfill, **budget)
    assert (await resumed(control, org, backfill, tasks=3, hours=1)).stopped_because is None
    await run(control)
    assert await queued(control) == ["0-9", "10-19", "20-29"]
    await resumed(control, org, backfill, tasks=9)
    await control.pool.execute("UPDATE backfills SET budget_until = now()")
    await run(control)
    assert (await shown(control, org, backfill)).stopped_because == "the hours of its budget are over"
    with pytest.raises(Conflict, match="hours"):
        await resumed(control, org, backfill)
    await resumed(control, org, backfill, hours=1)
    await run(control)
    assert len(await queued(control)) == 5
    assert (await shown(control, org, backfill)).ended_because == "complete"


async def run_metered(control: Control, requests: int) -> int:
    """A round of the loop with at most two open tasks, and those tasks; how many there were."""
    await control.pool.execute("UPDATE backfills SET due_at = now()")
    while await step(control, metered_tasks=2):
        pass
    ran = 0
    while (held := await claim_one(control)) is not None:
        await finish(control, held, requests=requests)
        ran += 1
    return ran


async def test_a_budget_of_requests_is_a_stop_that_can_be_raised(control: Control, org: Org) -> None:
    await a_version_behind(control, org)
    backfill = await started(control, org, job="bake", start=0, end=49, requests=250)
    assert [await run_metered(control, requests=100) for _ in range(4)] == [1, 1, 0, 0], "the first alone tells"
    stopped = await shown(control, org, backfill)
    assert (stopped.status, stopped.stopped_because) == ("Paused", FEW_REQUESTS)
    assert (stopped.used_requests, stopped.budget_requests, stopped.created) == (200, 250, 2), "never more than 250"
    with pytest.raises(Conflict, match="200 requests are used, and the budget is 200"):
        await resumed(control, org, backfill, requests=200)
    await resumed(control, org, backfill, requests=1000)
    assert [await run_metered(control, requests=100) for _ in range(3)] == [2, 1, 0], "few are open at once"
    done = await shown(control, org, backfill)
    assert (done.status, done.ended_because, done.used_requests) == ("Done", "complete", 500)


async def test_a_budget_is_exceeded_only_by_what_tasks_use_more_than_those_before(control: Control, org: Org) -> None:
    await a_version_behind(control, org)
    backfill = await started(control, org, job="bake", start=0, end=49, requests=30)
    assert [await run_metered(control, requests=used) for used in (10, 15, 15, 15)] == [1, 2, 0, 0]
    stopped = await shown(control, org, backfill)
    assert (stopped.stopped_because, stopped.used_requests) == (REQUESTS, 40)


async def test_a_budget_of_bytes_counts_the_files_that_were_committed(control: Control, org: Org) -> None:
    await a_version_behind(control, org)
    backfill = await started(control, org, job="bake", start=0, end=49, bytes=1)
    assert [await run_metered(control, requests=0) for _ in range(2)] == [1, 0]
    stopped = await shown(control, org, backfill)
    written = await control.pool.fetchval("SELECT sum(bytes_written) FROM tasks WHERE history")
    assert stopped.stopped_because == BYTES
    assert stopped.used_bytes == written > 1
    await resumed(control, org, backfill, bytes=written + 1)
    assert await run_metered(control, requests=0) == 0
    assert (await shown(control, org, backfill)).stopped_because == FEW_BYTES


async def test_requests_of_failed_attempts_count_and_are_shown_with_the_task(control: Control, org: Org) -> None:
    await a_version_behind(control, org)
    backfill = await started(control, org, job="bake", start=0, end=9, requests=5)
    await run(control)
    held = await claim_one(control)
    assert held is not None
    await finish(control, held, lambda _: True, requests=7)
    assert (await shown(control, org, backfill)).used_requests == 7
    task = await show_task(control.pool, org.id, held[0].task.task_id)
    assert (task.status, task.node_requests, task.bytes_written) == ("Failed", 7, 0)


async def test_all_gaps_of_a_dag_are_filled_and_alerts_are_not_repeated(control: Control, org: Org) -> None:
    await a_version_behind(control, org)
    await started(control, org)
    await run(control)
    assert await settle(control) == 5
    assert (await gaps(control, org)).complete


async def test_a_paused_backfill_continues_where_it_was(control: Control, org: Org) -> None:
    await a_version_behind(control, org)
    backfill = await started(control, org, job="bake", start=0, end=49)
    signal = control.after_commit.backfills
    assert (await change_backfill(control.pool, signal, org.id, backfill.id, "Paused")).status == "Paused"
    await run(control)
    assert await queued(control) == []
    assert (await change_backfill(control.pool, signal, org.id, backfill.id, "Running")).status == "Running"
    await run(control)
    assert len(await queued(control)) == 5
    with pytest.raises(Conflict, match="has ended"):
        await change_backfill(control.pool, signal, org.id, backfill.id, "Paused")
    assert [row.id for row in (await list_backfills(control.pool, org.id)).backfills] == [backfill.id]


async def test_a_backfill_waits_while_the_queue_of_its_job_is_long(control: Control, org: Org) -> None:
    await a_version_behind(control, org)
    await started(control, org, job="bake", start=0, end=9)
    await run(control)
    backfill = await started(control, org, job="bake", start=10, end=49)
    assert await step(control, catch_up_queued=1) == 1
    assert len(await queued(control)) == 1
    assert (await show_backfill(control.pool, org.id, backfill.id)).status == "Running"


async def test_the_tasks_of_a_backfill_wait_for_the_slots_that_all_jobs_share(control: Control, org: Org) -> None:
    await a_version_behind(control, org)
    await set_limits(control.pool, RUNTIMES, {"pull": OperatorSettings(max_in_flight=2)})
    await started(control, org, job="bake", start=0, end=49, tasks=5)
    await run(control)
    await drain(control)
    counts = "SELECT count(*), count(woken_at) FROM tasks WHERE status = 'Queued' AND history"
    assert [tuple(row) for row in await control.pool.fetch(counts)] == [(5, 2)], "as many as the limit of the operator"
    assert await settle(control) == 5


async def test_two_dispatchers_create_every_task_once(
    control: Control, org: Org, state_db: str, queue_db: str, tmp_path: Path
) -> None:
    await a_version_behind(control, org)
    await started(control, org, job="bake", start=0, end=29)
    await started(control, org, job="bake", start=10, end=49)
    async with control_for(state_db, queue_db, tmp_path, replica="two") as other:
        await asyncio.gather(run(control), run(other))
        await asyncio.gather(run(control), run(other))
    assert sorted(await queued(control)) == ["0-9", "10-19", "20-29", "30-39", "40-49"]


async def test_a_manual_source_sends_events_for_what_it_has_not_sent(control: Control, org: Org) -> None:
    await deployed_and_active(control, org, DAG)
    await asked(control, org, (100_000, 199_999))
    await settle(control)
    assert (await start(control, org, start=0, end=399_999, dry_run=True)).planned == 300_000
    backfill = await started(control, org, start=0, end=399_999, order="newest")
    await run(control)
    scopes = await control.pool.fetch("SELECT partition_key FROM events WHERE producer_run_id = $1", backfill.id)
    assert {row["partition_key"] for row in scopes} == {"0-99999", "200000-299999", "300000-399999"}
    assert await settle(control) == 6, "`grind` and `bake` of three ranges; `warn` is for new data"
    assert (await start(control, org, start=0, end=399_999)).backfill is None


REFUSED: list[tuple[dict[str, Any], type[TraceError], str]] = [
    ({"dag": "mil"}, NotFound, "mill"),
    ({"job": "bakery", "start": 0, "end": 9}, NotFound, "bake"),
    ({"job": "bake", "start": 9, "end": 0}, InvalidRequest, ""),
    ({"job": "bake", "start": 9}, InvalidRequest, ""),
    ({"job": "bake", "start": 5000, "end": 6000}, InvalidRequest, "dataset show"),
    ({"job": "warn", "start": 0, "end": 9}, Conflict, "replay"),
    ({"job": "ask"}, InvalidRequest, "range"),
    ({"job": "ask", "start": 0, "end": 99, "tasks": 5}, InvalidRequest, "hours"),
    ({"job": "ask", "start": 0, "end": 99, "again": True}, InvalidRequest, "invalidate"),
]


async def test_what_cannot_be_backfilled_is_refused_with_a_hint_and_nothing_is_stored(
    control: Control, org: Org
) -> None:
    await deployed_and_active(control, org, DAG)
    await asked(control, org, (0, 9))
    await settle(control)
    for request, refusal, hint in REFUSED:
        with pytest.raises(refusal) as refused:
            await start(control, org, **request)
        assert hint in (refused.value.hint or ""), request
    with pytest.raises(NotFound) as unknown:
        await gaps(control, org, "flou")
    assert "flour" in (unknown.value.hint or "")
    assert await control.pool.fetchval("SELECT count(*) FROM backfills") == 0
