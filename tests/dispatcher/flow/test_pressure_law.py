"""Backpressure on random DAGs with the real Dispatcher: all drains, and nothing is lost, doubled or reordered."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from tests.support.dispatcher.control import PULL, Org, an_org, control_for, deployed_and_active
from tests.support.dispatcher.job_chain import claimed, completion, drained, expire, retry_now
from tests.support.operators import registered
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

AS_ACCEPTED = """
SELECT j.name, e.dataset_uuid, o.id AS accepted
  FROM tasks t JOIN jobs j ON j.id = t.job_id JOIN events e ON e.id = t.event_id
  JOIN outbox o ON o.kind = 'route_event' AND o.payload ->> 'event_id' = e.id::text
 ORDER BY t.id
"""


@dataclass(frozen=True)
class RandomDag:
    """A manual source `j0`, and jobs that each read one or two before them; some of them in a second DAG."""

    readers: dict[str, list[str]]
    texts: list[str]
    slow: str


def random_dag(dice: random.Random, *, two_dags: bool) -> RandomDag:
    names = [f"j{number}" for number in range(dice.randint(3, 5))]
    first = names[: dice.randint(1, len(names) - 1)] if two_dags else names
    jobs = {"j0": "  - {name: j0, operator: pull, source: {kind: manual}}"}
    readers: dict[str, list[str]] = {name: [] for name in names}
    slow = dice.choice(names[1:])
    for number, name in enumerate(names[1:], 1):
        inputs = dice.sample(names[:number], dice.randint(1, min(2, number)))
        for item in inputs:
            readers[item].append(name)
        limits = random_limits(dice) if name == slow or dice.random() < 0.6 else ""
        slots = f", scaling: {{max_concurrency: {dice.randint(1, 3)}}}" if dice.random() < 0.4 else ""
        bulk = ", priority: bulk" if dice.random() < 0.3 else ""
        kinds = ["dataset" if item in first and name not in first else "job" for item in inputs]
        wired = ", ".join(f"{{from: {{{kind}: {item}}}}}" for kind, item in zip(kinds, inputs, strict=True))
        jobs[name] = f"  - {{name: {name}, operator: pull, inputs: [{wired}]{limits}{slots}{bulk}}}"
    published = "".join(f"  {name}: {{job: {name}}}\n" for name in first)
    texts = [dag_of("shape", [jobs[name] for name in first]) + f"publish:\n{published}"]
    if two_dags:
        texts.append(dag_of("behind", [jobs[name] for name in names if name not in first]))
    return RandomDag(readers, texts, slow)


def random_limits(dice: random.Random) -> str:
    depth = dice.randint(1, 3)
    resume = f", resume_queue_depth: {dice.randint(0, depth)}" if dice.random() < 0.4 else ""
    age = ", max_queue_age: 1s" if dice.random() < 0.4 else ""
    return f", max_queue_depth: {depth}{resume}{age}"


def dag_of(name: str, jobs: list[str]) -> str:
    return "\n".join([f"name: {name}", "defaults: {runtime: ecs_platform}", "jobs:", *jobs]) + "\n"


async def runnable(control: Control) -> list[tuple[UUID, str, int, UUID, UUID]]:
    rows = await control.pool.fetch(
        "SELECT t.id, j.name, (t.input_versions ->> 'cursor')::int, s.dataset_uuid, s.dataset_version"
        " FROM tasks t JOIN jobs j ON j.id = t.job_id"
        " JOIN dag_version_datasets s"
        "   ON s.dag_version_id = j.dag_version_id AND s.dataset_uuid = j.output_datasets[1]"
        " WHERE t.status = 'Queued' AND t.woken_at IS NOT NULL ORDER BY t.id"
    )
    return [tuple(row) for row in rows]


async def run_one(
    control: Control, task: UUID, cursor: int, dataset: UUID, version: UUID, *, fault: str | None = None
) -> None:
    """With a fault, its first attempt fails, or its worker dies; the next one is due at once."""
    lease, claims = await claimed(control, task)
    if fault and lease.attempt == 1:
        if fault == "fails":
            failed = completion(lease, status="Failed", error_message="a fault", retryable=True)
            await control.completer()(failed, claims)
            await retry_now(control, task)
        else:
            await expire(control, task)
            await retry_now(control, task)
        return
    event = EventBody(dataset_uuid=dataset, dataset_version=version, cursor=cursor)
    await control.completer()(completion(lease, events=[event]), claims)


async def dies_somewhere(dice: random.Random, work: Awaitable[object]) -> None:
    """As in a process that is killed: what it has not committed is rolled back."""
    task = asyncio.ensure_future(work)
    for _ in range(dice.randint(0, 30)):
        await asyncio.sleep(0)
    await asyncio.wait({task}, timeout=dice.choice((0.0, 0.002, 0.01)))
    task.cancel()
    await asyncio.wait({task})


@pytest.mark.parametrize("seed", [0, 1, 2, 69])  # 69: its source is paused again while some of its events are held
async def test_once_consumers_recover_everything_drains_once_each_and_in_order(control: Control, seed: int) -> None:
    await drains(seed, [control])


@pytest.mark.parametrize("seed", range(4, 8))
async def test_so_it_does_with_two_replicas_whose_passes_die_and_tasks_that_fail(
    state_db: str, queue_db: str, tmp_path: Path, seed: int
) -> None:
    with registered(pull=PULL):
        async with (
            control_for(state_db, queue_db, tmp_path) as control,
            control_for(state_db, queue_db, tmp_path, replica="two") as other,
        ):
            await drains(seed, [control, other], faults=True)


async def drains(seed: int, replicas: Sequence[Control], *, faults: bool = False) -> None:
    """With `faults`, passes die and attempts fail for as long as new events come. Odd seeds are of two DAGs."""
    dice, control = random.Random(seed), replicas[0]  # noqa: S311 - a choice, not a secret
    org: Org = await an_org(control.pool)
    dag = random_dag(dice, two_dags=seed % 2 == 1)
    for text in dag.texts:
        await deployed_and_active(control, org, text)
    settings = FlowSettings(release_queue_depth=dice.randint(1, 5))
    flows = [ApplyPressure(replica.pool, replica.after_commit, settings) for replica in replicas]
    held_ever, left, stuck = 0, list(range(TRIGGERS)), True
    for _ in range(2_000):
        if left:
            await trigger(control, org.id, "shape", "j0", cursor=left.pop(0), request_id=uuid4())
            if faults:
                await dies_somewhere(dice, drained(dice.choice(replicas)))
                await dies_somewhere(dice, dice.choice(flows).once())
        await drained(dice.choice(replicas))
        await asyncio.gather(*(flow.once() for flow in flows))
        await drained(dice.choice(replicas))
        held_ever = max(held_ever, await control.pool.fetchval("SELECT count(*) FROM held_events"))
        stuck = stuck and bool(left)
        tasks = [task for task in await runnable(control) if not (stuck and task[1] == dag.slow)]
        for task, _, cursor, dataset, version in dice.sample(tasks, min(len(tasks), dice.randint(1, 6))):
            fault = dice.choice(("fails", "dies", None, None)) if faults and left else None
            await run_one(dice.choice(replicas), task, cursor, dataset, version, fault=fault)
        if not left and not await control.pool.fetchval(
            "SELECT EXISTS (SELECT FROM held_events) OR EXISTS (SELECT FROM tasks WHERE status = 'Queued')"
        ):
            break
    assert held_ever, "nothing was ever held: the DAG shows nothing"
    await assert_complete(control, dag)
    assert not await control.pool.fetchval("SELECT EXISTS (SELECT FROM pauses WHERE until IS NULL)") or await settles(
        control, flows[0]
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
    await assert_in_order(control)


async def assert_in_order(control: Control) -> None:
    """Each job got its tasks in the order in which the events of the dataset were accepted."""
    found: dict[tuple[str, UUID], list[int]] = {}
    for row in await control.pool.fetch(AS_ACCEPTED):
        found.setdefault((row["name"], row["dataset_uuid"]), []).append(row["accepted"])
    assert found
    for (name, _), accepted in found.items():
        assert accepted == sorted(accepted), f"{name} got its tasks in another order than the events came"
