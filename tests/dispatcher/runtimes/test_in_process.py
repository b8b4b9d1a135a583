"""In-process operators through the whole Dispatcher, with two replicas."""

from __future__ import annotations

import asyncio
import json
from uuid import UUID, uuid4

import pytest

from tests.support.dispatcher.control import PULL, Org, deployed_and_active, run_here
from tests.support.verbs import activate_dag, deploy_dag, invalidate, trigger
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.maintenance.cancel_retired import cancel_retired_tasks
from tracelake.dispatcher.runtimes.run_in_process import Ran, run_in_process
from tracelake.operators import range_splitter
from tracelake.operators.api.outcome import Outcome, State
from tracelake.operators.registry import IN_PROCESS, InProcess
from tracelake.wire.task.lifecycle import TaskPayload
from tracelake.wire.task.outputs import EventBody

OPERATORS = {"pull": PULL}
LINE = """
name: line
defaults: {runtime: dispatcher}
jobs:
  - {name: ask, operator: noop, source: {kind: manual}}
  - {name: cut, operator: range_splitter, config: {chunk: 10}, inputs: [{from: {job: ask}}]}
  - {name: join, operator: range_aggregator, config: {size: 100}, inputs: [{from: {job: cut}}]}
  - {name: work, operator: pull, runtime: ecs_platform, inputs: [{from: {job: join}}]}
publish: {asked: {job: ask}, parts: {job: cut}}
"""


async def partitions(control: Control, job: str, *states: str) -> list[str]:
    rows = await control.pool.fetch(
        "SELECT t.partitions[1] AS key FROM tasks t JOIN jobs j ON j.id = t.job_id"
        " WHERE j.name = $1 AND t.status = ANY ($2::text[]::task_status[]) ORDER BY 1",
        job,
        list(states) or ["Queued"],
    )
    return [row["key"] for row in rows]


@pytest.fixture
def control(pair: tuple[Control, Control]) -> Control:
    return pair[0]


@pytest.mark.anyio
async def test_a_range_is_split_and_put_together_again(pair: tuple[Control, Control], org: Org) -> None:
    control, _ = pair
    await deployed_and_active(control, org, LINE)
    await trigger(control, org.id, "line", "ask", start=0, end=249, request_id=uuid4())
    await run_here(control)
    assert len(await partitions(control, "join", "Completed")) == 25
    assert await partitions(control, "work") == ["0-99", "100-199"]
    # The rest of the third range, and some of it twice.
    await trigger(control, org.id, "line", "ask", start=240, end=299, request_id=uuid4())
    await run_here(control)
    assert await partitions(control, "work") == ["0-99", "100-199", "200-299"]


@pytest.mark.anyio
async def test_an_invalidated_range_runs_again_where_it_was_emitted(pair: tuple[Control, Control], org: Org) -> None:
    control, _ = pair
    await deployed_and_active(control, org, LINE)
    await trigger(control, org.id, "line", "ask", start=0, end=249, request_id=uuid4())
    await run_here(control)
    request = uuid4()
    for _ in range(2):
        await invalidate(control, org.id, org.user, "parts", start=95, end=104, reason="reorg", request_id=request)
    await invalidate(control, org.id, org.user, "parts", start=205, end=209, reason="reorg", request_id=uuid4())
    await run_here(control)
    assert await partitions(control, "work") == ["0-99", "0-99", "100-199", "100-199"]
    undone = (
        "SELECT count(*) FROM data_invalidation_jobs s JOIN jobs j ON j.id = s.job_id"
        " WHERE j.name = 'join' AND s.processed_at IS NULL"
    )
    assert await control.pool.fetchval(undone) == 0


@pytest.mark.anyio
async def test_two_replicas_lose_no_state_of_one_job(pair: tuple[Control, Control], org: Org) -> None:
    replica, other_replica = pair
    await deployed_and_active(replica, org, LINE.replace("chunk: 10", "chunk: 1"))
    await trigger(replica, org.id, "line", "ask", start=0, end=59, request_id=uuid4())
    for _ in range(2):  # ask's event makes cut's task, cut's events make join's
        await replica.router().route("route_event")
        await run_in_process(replica.claimer(), replica.completer(), await queued(replica, "cut"))
    waiting = await queued(replica, "join")
    assert len(waiting) == 60
    both = await asyncio.gather(
        run_in_process(replica.claimer(), replica.completer(), waiting),
        run_in_process(other_replica.claimer(), other_replica.completer(), waiting[::-1]),
        run_in_process(replica.claimer(), replica.completer(), waiting[10:]),
    )
    assert sum(done.completed for done in both) == 60
    state = await replica.pool.fetchval("SELECT state::text FROM operator_state")
    assert json.loads(state)["heard"] == [[0, 60]]
    runs = await replica.pool.fetch("SELECT count(*) FROM task_attempts GROUP BY task_id HAVING count(*) > 1")
    assert runs == []


async def queued(control: Control, job: str) -> list[UUID]:
    rows = await control.pool.fetch(
        "SELECT t.id FROM tasks t JOIN jobs j ON j.id = t.job_id"
        " WHERE j.name = $1 AND t.status = 'Queued' ORDER BY t.id",
        job,
    )
    return [row["id"] for row in rows]


@pytest.mark.anyio
async def test_a_task_that_cannot_be_right_fails_for_good_and_says_why(pair: tuple[Control, Control], org: Org) -> None:
    control, _ = pair
    await deployed_and_active(control, org, LINE)
    await trigger(control, org.id, "line", "ask", cursor=5, request_id=uuid4())
    await run_here(control)
    [row] = await control.pool.fetch(
        "SELECT t.status::text, t.error_message, t.next_retry_at, a.outcome::text FROM tasks t"
        " JOIN task_attempts a ON a.task_id = t.id"
    )
    assert (row["status"], row["next_retry_at"], row["outcome"]) == ("Failed", None, "Failed")
    assert "a range is needed, and this is cursor 5" in row["error_message"]


@pytest.mark.anyio
async def test_an_outcome_that_is_refused_fails_its_task_and_no_other(
    pair: tuple[Control, Control], org: Org, monkeypatch: pytest.MonkeyPatch
) -> None:
    control, _ = pair
    await deployed_and_active(control, org, LINE)
    for start in (0, 10):
        await trigger(control, org.id, "line", "ask", start=start, end=start + 9, request_id=uuid4())
    await control.router().route("route_event")

    def run(task: TaskPayload, state: State | None) -> Outcome:
        if task.scope.start == 0:
            return Outcome((EventBody(dataset_uuid=uuid4(), dataset_version=uuid4(), cursor=1),))
        return range_splitter.run(task, state)

    broken = InProcess(IN_PROCESS["range_splitter"].spec, run)
    monkeypatch.setattr(
        "tracelake.dispatcher.runtimes.run_in_process.IN_PROCESS", {**IN_PROCESS, "range_splitter": broken}
    )
    assert await run_in_process(control.claimer(), control.completer(), await queued(control, "cut")) == Ran(
        completed=1, failed=1
    )
    error = await control.pool.fetchval("SELECT error_message FROM tasks WHERE status = 'Failed'")
    assert error.startswith("its outcome was refused: the token does not let this task write")


@pytest.mark.anyio
async def test_a_replica_that_dies_in_the_middle_leaves_the_task_queued(
    pair: tuple[Control, Control], org: Org, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica, other_replica = pair
    await deployed_and_active(replica, org, LINE)
    await trigger(replica, org.id, "line", "ask", start=0, end=9, request_id=uuid4())
    await replica.router().route("route_event")
    waiting = await queued(replica, "cut")

    async def die(*_: object) -> None:
        raise asyncio.CancelledError

    with monkeypatch.context() as patch:
        patch.setattr("tracelake.dispatcher.runtimes.run_in_process.complete_in_transaction", die)
        with pytest.raises(asyncio.CancelledError):
            await run_in_process(replica.claimer(), replica.completer(), waiting)
    assert await queued(replica, "cut") == waiting
    assert await run_in_process(other_replica.claimer(), other_replica.completer(), waiting) == Ran(completed=1)
    assert await run_in_process(replica.claimer(), replica.completer(), [*waiting, uuid4()]) == Ran(skipped=2)


@pytest.mark.anyio
async def test_an_unchanged_aggregator_keeps_its_state_in_the_next_version(
    pair: tuple[Control, Control], org: Org
) -> None:
    control, _ = pair
    await deployed_and_active(control, org, LINE)
    await trigger(control, org.id, "line", "ask", start=0, end=49, request_id=uuid4())
    await run_here(control)
    changed = await deploy_dag(
        control, org.id, org.user, LINE.replace("operator: pull", "operator: pull, config: {n: 2}")
    )
    await trigger(control, org.id, "line", "ask", start=50, end=69, request_id=uuid4())
    await control.router().route("route_event")
    await run_in_process(control.claimer(), control.completer(), await queued(control, "cut"))
    await control.router().route("route_event")
    assert len(await queued(control, "join")) == 2  # the old version's, when it leaves
    done = await activate_dag(control, org.id, "line", changed.dag_version_id)
    assert (done.canceled_tasks, done.made_again) == (2, 2)
    await trigger(control, org.id, "line", "ask", start=70, end=99, request_id=uuid4())
    await run_here(control)
    assert await partitions(control, "work") == ["0-99"]


@pytest.mark.anyio
async def test_a_straggler_of_a_version_that_left_runs_in_the_one_that_serves(
    pair: tuple[Control, Control], org: Org
) -> None:
    control, _ = pair
    first = await deployed_and_active(control, org, LINE)
    second = await deployed_and_active(control, org, LINE.replace("operator: pull", "operator: pull, config: {n: 2}"))
    straggler = await control.pool.fetchval(
        "INSERT INTO tasks (org_id, job_id, dedupe_key, input_versions, woken_at)"
        " SELECT org_id, id, 'partition:late',"
        " jsonb_build_object('dataset_uuid', input_datasets[1], 'start', 0, 'end', 9), now()"
        " FROM jobs WHERE id = $1 RETURNING id",
        first.jobs["join"],
    )
    assert await run_in_process(control.claimer(), control.completer(), [straggler]) == Ran(skipped=1)
    assert await cancel_retired_tasks(control.pool, control.after_commit) == 1
    await run_here(control)
    [row] = await control.pool.fetch("SELECT job_id, state::text AS state FROM operator_state")
    assert (row["job_id"], json.loads(row["state"])["heard"]) == (second.jobs["join"], [[0, 10]])


@pytest.mark.anyio
async def test_an_activation_in_the_middle_of_a_busy_aggregator_loses_nothing(
    pair: tuple[Control, Control], org: Org
) -> None:
    replica, other_replica = pair
    first = LINE.replace("chunk: 10", "chunk: 1")
    await deployed_and_active(replica, org, first)
    changed = await deploy_dag(
        replica, org.id, org.user, first.replace("operator: pull", "operator: pull, config: {n: 2}")
    )
    await trigger(replica, org.id, "line", "ask", start=0, end=59, request_id=uuid4())
    for _ in range(2):
        await replica.router().route("route_event")
        await run_in_process(replica.claimer(), replica.completer(), await queued(replica, "cut"))
    waiting = await queued(replica, "join")
    _, _, done = await asyncio.gather(
        run_in_process(replica.claimer(), replica.completer(), waiting),
        run_in_process(other_replica.claimer(), other_replica.completer(), waiting[::-1]),
        activate_dag(other_replica, org.id, "line", changed.dag_version_id),
    )
    await run_here(replica)
    state = await replica.pool.fetchval(
        "SELECT state::text FROM operator_state WHERE job_id = $1", changed.jobs["join"]
    )
    assert json.loads(state)["heard"] == [[0, 60]]
    completed = await replica.pool.fetchval(
        "SELECT count(*) FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = 'join' AND t.status = 'Completed'"
    )
    assert (completed, done.made_again) == (60, done.canceled_tasks)
