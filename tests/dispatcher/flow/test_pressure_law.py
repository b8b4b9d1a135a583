"""Backpressure on random DAGs with the real Dispatcher: all drains, and nothing is lost, doubled or reordered."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from uuid import UUID, uuid4

import pytest

from tests.support.dispatcher.control import PULL, Org, an_org, deployed_and_active
from tests.support.dispatcher.job_chain import claimed, completion, drained
from tests.support.verbs import trigger
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.flow.apply_pressure import ApplyPressure
from tracelake.settings import FlowSettings
from tracelake.wire.task.outputs import EventBody

pytestmark = pytest.mark.anyio

OPERATORS = {"pull": PULL}

TRIGGERS = 8
OUT_OF_TURN = """
SELECT count(*) FROM outbox o JOIN events e ON e.id::text = o.payload ->> 'event_id' WHERE o.turn_of <> e.dataset_uuid
"""


@dataclass(frozen=True)
class RandomDag:
    """A manual source `j0`, and jobs that each read one or two before them."""

    readers: dict[str, list[str]]
    text: str
    slow: str


def random_dag(dice: random.Random) -> RandomDag:
    names = [f"j{number}" for number in range(dice.randint(3, 5))]
    lines = ["name: shape", "defaults: {runtime: ecs_platform}", "jobs:"]
    lines.append("  - {name: j0, operator: pull, source: {kind: manual}}")
    readers: dict[str, list[str]] = {name: [] for name in names}
    slow = dice.choice(names[1:])
    for number, name in enumerate(names[1:], 1):
        inputs = dice.sample(names[:number], dice.randint(1, min(2, number)))
        for item in inputs:
            readers[item].append(name)
        limits = f", max_queue_depth: {dice.randint(1, 3)}" if name == slow or dice.random() < 0.6 else ""
        slots = f", scaling: {{max_concurrency: {dice.randint(1, 3)}}}" if dice.random() < 0.4 else ""
        bulk = ", priority: bulk" if dice.random() < 0.3 else ""
        wired = ", ".join(f"{{from: {{job: {item}}}}}" for item in inputs)
        lines.append(f"  - {{name: {name}, operator: pull, inputs: [{wired}]{limits}{slots}{bulk}}}")
    return RandomDag(readers, "\n".join(lines) + "\n", slow)


async def runnable(control: Control) -> list[tuple[UUID, str, int, UUID, UUID]]:
    rows = await control.pool.fetch(
        "SELECT t.id, j.name, (t.input_versions ->> 'cursor')::int, s.dataset_uuid, s.dataset_version"
        " FROM tasks t JOIN jobs j ON j.id = t.job_id"
        " JOIN dag_version_datasets s"
        "   ON s.dag_version_id = j.dag_version_id AND s.dataset_uuid = j.output_datasets[1]"
        " WHERE t.status = 'Queued' AND t.woken_at IS NOT NULL ORDER BY t.id"
    )
    return [tuple(row) for row in rows]


async def run_one(control: Control, task: UUID, cursor: int, dataset: UUID, version: UUID) -> None:
    lease, claims = await claimed(control, task)
    event = EventBody(dataset_uuid=dataset, dataset_version=version, cursor=cursor)
    await control.completer()(completion(lease, events=[event]), claims)


@pytest.mark.parametrize("seed", range(3))
async def test_once_consumers_recover_everything_drains_once_each_and_in_order(control: Control, seed: int) -> None:
    dice = random.Random(seed)  # noqa: S311 - a choice, not a secret
    org: Org = await an_org(control.pool)
    dag = random_dag(dice)
    await deployed_and_active(control, org, dag.text)
    flow = ApplyPressure(control.pool, control.after_commit, FlowSettings(release_queue_depth=dice.randint(1, 5)))
    held_ever, left, stuck = 0, list(range(TRIGGERS)), True
    for _ in range(2_000):
        if left:
            await trigger(control, org.id, "shape", "j0", cursor=left.pop(0), request_id=uuid4())
        await drained(control)
        await flow.once()
        await drained(control)
        held_ever = max(held_ever, await control.pool.fetchval("SELECT count(*) FROM held_events"))
        stuck = stuck and bool(left)
        tasks = [task for task in await runnable(control) if not (stuck and task[1] == dag.slow)]
        for task, _, cursor, dataset, version in dice.sample(tasks, min(len(tasks), dice.randint(1, 6))):
            await run_one(control, task, cursor, dataset, version)
        if not left and not await control.pool.fetchval(
            "SELECT EXISTS (SELECT FROM held_events) OR EXISTS (SELECT FROM tasks WHERE status = 'Queued')"
        ):
            break
    assert held_ever, "nothing was ever held: the DAG shows nothing"
    await assert_complete(control, dag)
    assert not await control.pool.fetchval("SELECT EXISTS (SELECT FROM pauses WHERE until IS NULL)") or await settles(
        control, flow
    )


async def settles(control: Control, flow: ApplyPressure) -> bool:
    await flow.once()
    return not await control.pool.fetchval("SELECT EXISTS (SELECT FROM pauses WHERE until IS NULL)")


async def assert_complete(control: Control, dag: RandomDag) -> None:
    """One task for each event and reader: a cursor reaches a job once by each of the datasets that it reads."""
    rows = await control.pool.fetch(
        "SELECT j.name, (t.input_versions ->> 'cursor')::int, t.input_versions ->> 'dataset_uuid', t.status::text"
        " FROM tasks t JOIN jobs j ON j.id = t.job_id ORDER BY t.id"
    )
    assert {status for *_, status in rows} == {"Completed"}
    found = Counter((name, cursor) for name, cursor, _, _ in rows)
    inputs = Counter(reader for readers in dag.readers.values() for reader in readers)
    # A job emits a cursor once for each of its own tasks about it, as the same event: its readers get it once.
    assert found == {(name, cursor): count for name, count in inputs.items() for cursor in range(TRIGGERS)}
    assert not await control.pool.fetchval(OUT_OF_TURN), "each event is routed in the turn of its dataset"
    direct = [cursor for name, cursor, _, _ in rows if name in dag.readers["j0"] and inputs[name] == 1]
    for name in {name for name in dag.readers["j0"] if inputs[name] == 1}:
        cursors = [cursor for other, cursor, _, _ in rows if other == name]
        assert cursors == sorted(cursors), f"{name} got its tasks in another order than the triggers: {direct}"
