"""A process dies at every commit and every side effect there is, and nothing is lost or counted twice.

A chain of processes, each armed for one point: each must die there, and the next goes on with what it left, while
users and tasks go on. A point at which no process dies fails the test. Then all drains, and the history is read.
"""

from __future__ import annotations

import ast
import asyncio
from pathlib import Path

import pytest

import tracelake
from tests.support.faults.backends import Faults
from tests.support.faults.deaths import LEFT, RETAINING, SOURCES, dies_at
from tests.support.faults.history_checker import assert_kept
from tests.support.faults.traffic import Traffic, by_hand, flowing
from tests.support.systems.caller import calling
from tests.support.systems.processes import System
from tests.support.waiting import SECONDS, until
from tracelake.domain.crash_points import POINTS

pytestmark = pytest.mark.anyio

KEYS = [item for item in POINTS if item.startswith("rotate_keys.")]
CLEARING = [item for item in POINTS if item.startswith(("delete_orphan_files.", "prune_outbox."))]
AT_WORKERS = [
    item
    for item in POINTS
    if item.startswith(("wrapper.", "lease_keeper.")) or (item.startswith("queue.") and "publish" not in item)
]
OPERATORS = [item for item in POINTS if item.startswith(("follow_chain.", "parquet_compact."))]
"""Where a chain is followed: `tests/chain_walk/test_storm.py` kills workers there."""
BATCHES = [
    item
    for item in POINTS
    if item.startswith(
        ("sink.", "merge_batches.", "settle_buffers.", "replay_batch.", "delete_applied_batches.", "republish_batches.")
    )
]
"""Of buffered datasets: `tests/sink/test_killed.py` dies at them."""
ALERTS = [item for item in POINTS if item.startswith(("alert_route.", "delivery."))]
"""`tests/delivery/test_killed.py` dies at them."""
RUNNER = [item for item in POINTS if item.startswith(("runner.", "run_udf."))]
"""Of untrusted code: `tests/runner/test_killed.py` dies at them."""
STEPS = ("catch_up.", "run_backfill.", "start_backfill.", "change_backfill.")
COMPARED = ("ask_promotion.", "take_comparison.", "report_comparison.")
VERSIONS = [
    item
    for item in POINTS
    if item.startswith((*STEPS, *COMPARED)) or item.partition(".")[0].endswith(("_release", "_releases"))
]
"""`tests/faults/killed/test_versions.py` and `test_releases.py` die at them."""
PEOPLE = [
    item for item in POINTS[: POINTS.index("claim_task.before_commit")] if item not in {*BATCHES, *VERSIONS, *SOURCES}
]
TASKS = [
    item
    for item in POINTS[POINTS.index("claim_task.before_commit") : POINTS.index("drain_outbox.events_routed")]
    if item not in BATCHES
]
ELSEWHERE = [*RETAINING, *LEFT, *BATCHES, *VERSIONS, *OPERATORS, *ALERTS, *RUNNER, *SOURCES]
LOOPS = [item for item in POINTS if item not in {*KEYS, *CLEARING, *AT_WORKERS, *PEOPLE, *TASKS, *ELSEWHERE}]
DISTURBED = Faults(seed=1, lost=0.3)
"""So that entries are put off, which is a commit too."""


async def test_every_call_in_the_code_is_a_point_and_every_point_a_call() -> None:
    called = [name for path in sources() for name in points_in(path)]
    of_queues = {name for name in called if name.startswith("queue.")}  # each adapter of the port has them
    assert sorted([*of_queues, *(name for name in called if name not in of_queues)]) == sorted(POINTS)


async def test_every_point_is_in_one_of_the_chains() -> None:
    assert sorted([*KEYS, *CLEARING, *AT_WORKERS, *PEOPLE, *TASKS, *LOOPS, *ELSEWHERE]) == sorted(POINTS)


@pytest.mark.parametrize("points", [PEOPLE, TASKS, LOOPS], ids=["people", "tasks", "loops"])
async def test_a_dispatcher_dies_at_each_point_and_nothing_is_lost_or_doubled(
    system: System, points: list[str]
) -> None:
    async with calling(system) as caller:
        traffic = Traffic(system, caller, drains=points is PEOPLE)
        first = system.dispatcher()
        await traffic.deploy()
        system.worker()
        await first.kill()
        async with flowing(traffic):
            for point in points:
                await dies_at(system.dispatcher(point=point, faults=DISTURBED if points is LOOPS else None), point)
            system.dispatcher()
    await assert_kept(system.pool, system.queue_pool, traffic.accepted)


async def test_a_worker_dies_at_each_point_and_nothing_is_lost_or_doubled(system: System) -> None:
    async with calling(system) as caller:
        traffic = Traffic(system, caller)
        system.dispatcher()
        await traffic.deploy()
        async with flowing(traffic):
            for point in AT_WORKERS:
                await dies_at(system.worker(point=point), point)
            system.worker()
    await assert_kept(system.pool, system.queue_pool, traffic.accepted)


async def test_a_dispatcher_dies_at_each_point_of_its_first_start_and_the_next_one_signs(system: System) -> None:
    for point in sorted(KEYS, key=lambda key: key != "rotate_keys.rotated"):  # only the very first start makes a key
        await dies_at(system.dispatcher(point=point), point)
    system.dispatcher()
    system.worker()
    async with calling(system) as caller:
        traffic = Traffic(system, caller)
        await traffic.deploy()
        async with flowing(traffic), asyncio.timeout(SECONDS):
            await until(lambda: traffic.accepted, "a call is accepted")
    assert await system.pool.fetchval("SELECT count(*) FROM signing_keys WHERE status = 'Active'") == 1
    await assert_kept(system.pool, system.queue_pool, traffic.accepted)


async def test_a_dispatcher_dies_while_it_clears_up_and_only_what_is_old_is_gone(system: System) -> None:
    async with calling(system) as caller:
        traffic = Traffic(system, caller)
        first = system.dispatcher()
        await traffic.deploy()
        system.worker()
        async with by_hand(caller, system):
            await traffic.round()
            await traffic.settle()
        await first.kill()
        await system.pool.execute(OLD_ATTEMPTS)
        for point in CLEARING:
            await system.pool.execute(OLD_ENTRIES)
            await dies_at(system.dispatcher(point=point), point)
        system.dispatcher()

        async def reached() -> bool:
            return not await system.pool.fetchval(UNCLEARED)

        await until(reached, "orphan files are deleted and the outbox is pruned")
    await assert_kept(system.pool, system.queue_pool, traffic.accepted)


OLD_ATTEMPTS = """
UPDATE task_attempts SET started_at = started_at - interval '2 h', ended_at = ended_at - interval '2 h'
"""
OLD_ENTRIES = """
INSERT INTO outbox (org_id, kind, status, attempts, payload, available_at, created_at, processed_at)
SELECT o.id, 'route_event', 'Done', 1, jsonb_build_object('event_id', gen_random_uuid()), at, at, at
  FROM orgs o, (SELECT now() - interval '30 days' AS at), generate_series(1, 10)
"""
UNCLEARED = """
SELECT (SELECT max(started_at) FROM task_attempts) > (SELECT swept_until FROM orphan_file_marks)
    OR EXISTS (SELECT FROM outbox WHERE processed_at < now() - interval '29 days')
"""


def sources() -> list[Path]:
    return sorted(Path(tracelake.__file__).parent.rglob("*.py"))


def points_in(path: Path) -> list[str]:
    """Names are written where they are passed: a name that is computed could not be found by a reader, nor by us."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "crash_point":
            (name,) = node.args
            assert isinstance(name, ast.Constant), f"{path}:{node.lineno}"
            found.append(str(name.value))
    return found
