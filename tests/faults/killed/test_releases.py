"""A Dispatcher dies at each commit of a release: it is built, promoted and rolled back whole, or not at all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.faults.deaths import dies_at
from tests.support.systems.caller import Caller, calling
from tests.support.systems.processes import System
from tests.support.waiting import until
from tracelake.domain.crash_points import POINTS

pytestmark = pytest.mark.anyio

DAG = """
name: mill
defaults: {{runtime: dispatcher}}
jobs:
  - {{name: ask, operator: noop, source: {{kind: manual}}}}
  - {{name: cut, operator: range_splitter, config: {{chunk: {0}}}, inputs: [{{from: {{job: ask}}}}]}}
publish:
  pieces: {{job: cut}}
"""
READER = """
name: reader
defaults: {runtime: dispatcher}
jobs:
  - {name: end, operator: noop, inputs: [{from: {dataset: pieces}}]}
"""
POINTS_OF = {
    verb: (f"{verb}.before_commit", f"{verb}.after_commit")
    for verb in ("start_release", "run_releases", "promote_release", "rollback_release", "abandon_release")
}
LIMITED = """
UPDATE release_comparisons c SET limits = '{"max_missing_keys": 0}'
  FROM datasets d WHERE d.id = c.dataset_uuid AND d.name = 'pieces'
"""
COMPARED = ("ask_promotion.", "take_comparison.", "report_comparison.")
EVENTS = """
SELECT count(*) FROM events e
  JOIN datasets d ON d.id = e.dataset_uuid AND d.producer_job_name = 'end'
  JOIN dag_current_versions c ON c.dag_name = 'reader'
  JOIN dag_version_datasets s ON s.dag_version_id = c.dag_version_id AND s.dataset_version = e.dataset_version
"""


async def test_a_dispatcher_dies_at_each_point_of_a_release_and_the_next_one_completes_it(system: System) -> None:
    async with calling(system) as caller:
        last = system.dispatcher()
        for name, text in (("mill", DAG.format(10)), ("reader", READER)):
            await caller.activate(name, await caller.deployed(name, text))
        await caller.got("POST", "/dags/mill/jobs/ask/trigger", {"start": 0, "end": 99})
        await until(lambda: complete(caller), "the first versions have processed the range")
        assert await system.pool.fetchval(EVENTS) == 10
        await last.kill()

        start = asyncio.create_task(caller.got("POST", "/releases", {"dags": [DAG.format(5)]}))
        for point in (*POINTS_OF["start_release"], *POINTS_OF["run_releases"]):
            await dies_at(system.dispatcher(point=point), point)
        last = system.dispatcher()
        release = (await start)["release"]["id"]
        await until(lambda: is_in(caller, release, "Ready"), "the release is ready")
        assert await system.pool.fetchval(EVENTS) == 10, "the former versions serve"
        assert await system.pool.fetchval("SELECT count(*) FROM releases") == 1
        await last.kill()

        last = await compared(system, caller, release)
        refused = "SELECT NOT when_ready AND message LIKE '%missing keys: 1%' FROM releases WHERE state = 'Ready'"
        await until(lambda: system.pool.fetchval(refused), "the comparison has found too much")
        await last.kill()

        await system.pool.execute("UPDATE release_comparisons SET limits = '{}'")
        last = await dying(system, caller, f"/releases/{release}/promote", POINTS_OF["promote_release"])
        await until(lambda: complete(caller), "the new versions have caught up")
        assert await system.pool.fetchval(EVENTS) == 20
        assert await is_in(caller, release, "Serving")
        await last.kill()

        last = await dying(system, caller, f"/releases/{release}/rollback", POINTS_OF["rollback_release"])
        await until(lambda: complete(caller), "the former versions have caught up")
        assert await system.pool.fetchval(EVENTS) == 10
        assert await is_in(caller, release, "Standby")
        second = await caller.got("POST", "/releases", {"dags": [DAG.format(4)]})
        await last.kill()

        path = f"/releases/{second['release']['id']}/abandon"
        await dying(system, caller, path, POINTS_OF["abandon_release"])
        assert await is_in(caller, second["release"]["id"], "Abandoned")
        assert await system.pool.fetchval(EVENTS) == 10


async def test_no_point_of_releases_is_left_out() -> None:
    mine = {point for points in POINTS_OF.values() for point in points}
    assert mine == {point for point in POINTS if point.partition(".")[0].endswith(("_release", "_releases"))}
    assert {point for point in POINTS if point.startswith(COMPARED)} == {
        "ask_promotion.after_commit",
        "take_comparison.before_commit",
        "take_comparison.after_commit",
        "report_comparison.after_commit",
    }


async def compared(system: System, caller: Caller, release: str) -> Any:
    """Dispatchers die when the promotion is asked for, and when a comparison is taken and reported."""
    await system.pool.execute(LIMITED)
    last = await dying(system, caller, f"/releases/{release}/promote", ("ask_promotion.after_commit",))
    await last.kill()
    path = "/internal/query/comparisons"
    take = asyncio.create_task(caller.internal(f"{path}/take", None))
    for point in ("take_comparison.before_commit", "take_comparison.after_commit"):
        await dies_at(system.dispatcher(point=point), point)
        await system.pool.execute("UPDATE release_comparisons SET due_at = now() WHERE state = 'Running'")
    last = system.dispatcher()
    work = (await take)[1]["work"]
    assert work["release_id"] == release
    await last.kill()
    counts = dict.fromkeys(("rows_a", "rows_b", "only_b", "changed", "equal"), 0) | {"only_a": 1}
    result = dict.fromkeys(("former_commit", "commit", "note")) | dict.fromkeys(("key", "schema", "columns"), ())
    named = {name: work[name] for name in ("release_id", "dataset_uuid", "lease_token")}
    body = {**named, "steps": 1, "steps_planned": 1, "result": counts | result}
    report = asyncio.create_task(caller.internal(f"{path}/report", body))
    await dies_at(system.dispatcher(point="report_comparison.after_commit"), "report_comparison.after_commit")
    last = system.dispatcher()
    assert (await report)[1] == {"wanted": False}, "it was stored before the answer was lost"
    found = "SELECT state::text FROM release_comparisons WHERE limits <> '{}'"
    assert await system.pool.fetchval(found) == "Done"
    return last


async def dying(system: System, caller: Caller, path: str, points: tuple[str, ...]) -> Any:
    """Calls until it is answered, while Dispatchers die at these points; the one that answered."""
    call = asyncio.create_task(caller.got("POST", path))
    for point in points:
        await dies_at(system.dispatcher(point=point), point)
    last = system.dispatcher()
    await call
    return last


async def is_in(caller: Caller, release: str, state: str) -> bool:
    found = await caller.got("GET", f"/releases/{release}")
    return bool(found["release"]["state"] == state)


async def complete(caller: Caller) -> bool:
    return all([(await caller.got("GET", f"/gaps?of={dag}"))["complete"] for dag in ("mill", "reader")])
