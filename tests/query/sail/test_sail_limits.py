"""What one organisation may use on Sail: slots, time, cores and memory; and where the kernel limits them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from tests.support.query.sail import SailSystem, sail_system
from tests.support.waiting import until
from tracelake.errors import Busy, EngineLost, QueryTimeout
from tracelake.query.limits.slots import Slots
from tracelake.query.sail import pool as pool_module
from tracelake.sandbox.cgroup import find_cgroups

pytestmark = pytest.mark.anyio
COUNT = "SELECT count(*) AS n FROM numbers"
LONG = "SELECT count(*) AS n FROM numbers a CROSS JOIN numbers b CROSS JOIN numbers c WHERE a.text || b.text <> c.text"
needs_cgroups = pytest.mark.skipif(find_cgroups("a test") is None, reason="this process may not make cgroups")


@pytest.fixture(scope="module")
async def system(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SailSystem]:
    limits: dict[str, Any] = {
        "sail_concurrency": 2,
        "user_slots": 1,
        "waiting": 1,
        "engine_seconds": 600.0,
        "sail_cpus": 0.75,
    }
    async with sail_system(tmp_path_factory.mktemp("sail"), sail_memory_mb=300, max_bytes=2**30, **limits) as system:
        add_numbers(system)
        yield system


def add_numbers(system: SailSystem) -> None:
    table = pa.table({"id": pa.array(range(3000), pa.int64()), "text": [f"n{n % 7}" for n in range(3000)]})
    system.add("numbers", table, {"id": "bigint", "text": "string"})


async def test_tasks_of_an_organisation_do_not_take_the_slot_of_its_users(system: SailSystem) -> None:
    org = uuid4()
    tasks = [asyncio.create_task(system.engine.run(system.query(LONG, org_id=org, task=True))) for _ in range(2)]
    slots = system.engine._slots[org]
    await until(lambda: (slots.running, slots.waiting) == (1, 1), "one task runs and one waits")
    assert (await system.engine.run(system.query(COUNT, org_id=org))).rows == 1
    with pytest.raises(Busy):
        await system.engine.run(system.query(COUNT, org_id=org, task=True))
    assert (await system.engine.run(system.query(COUNT, org_id=uuid4(), task=True))).rows == 1, "another organisation"
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    await until(lambda: slots.running == 0, "nothing of them runs")


async def test_an_organisation_that_used_up_its_seconds_is_refused_and_another_is_not(tmp_path: Path) -> None:
    async with sail_system(tmp_path, engine_seconds=0.2, stuck_seconds=0.5) as system:
        add_numbers(system)
        with pytest.raises(QueryTimeout):
            await system.engine.run(system.query(LONG, seconds=0.5))
        await asyncio.gather(*system.engine._ending)
        with pytest.raises(Busy, match=r"more than 0.2 s in a minute") as refused:
            await system.engine.run(system.query(COUNT))
        assert refused.value.retryable
        assert refused.value.retry_after > 10
        assert (await system.engine.run(system.query(COUNT, org_id=uuid4()))).rows == 1


@needs_cgroups
async def test_all_processes_of_an_engine_are_in_a_group_with_its_memory_and_cores(system: SailSystem) -> None:
    await system.engine.run(system.query(COUNT))
    server = system.server()
    assert server._cgroup is not None
    pids = set(system.pids(system.org_id))
    for folder in server._cgroup.folders:
        assert pids <= set(map(int, (folder / "cgroup.procs").read_text().split()))
    written = {
        file: (folder / file).read_text().split()
        for folder in server._cgroup.folders
        for file in ("cpu.cfs_quota_us", "memory.limit_in_bytes", "cpu.max", "memory.max")
        if (folder / file).exists()
    }
    assert written.get("cpu.cfs_quota_us") == ["75000"] or written.get("cpu.max") == ["75000", "100000"]
    assert [str(332 * 1024 * 1024)] in written.values()
    await server.end()
    assert not any(folder.exists() for folder in server._cgroup.folders)


@needs_cgroups
async def test_the_kernel_ends_an_engine_that_takes_its_memory_at_once(
    system: SailSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "LOOK_SECONDS", 3600.0)  # we do not look
    async with sail_system(system.folder / "other", sail_memory_mb=256, max_bytes=2**30) as other:
        add_numbers(other)
        bomb = "SELECT repeat('x', 4000000) AS s FROM numbers WHERE id < 200 ORDER BY id"
        with pytest.raises(EngineLost, match="more than 256 MB"):
            await other.engine.run(other.query(bomb))
        assert (await other.engine.run(other.query(COUNT))).rows == 1


async def test_without_cgroups_an_engine_has_a_lower_priority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "find_cgroups", lambda *_: None)
    async with sail_system(tmp_path) as system:
        add_numbers(system)
        await system.engine.run(system.query(COUNT))
        priorities = {os.getpriority(os.PRIO_PROCESS, pid) for pid in system.pids()}
        assert max(priorities) == min(19, os.getpriority(os.PRIO_PROCESS, 0) + 5)
        assert not system.cgroups()


def test_a_group_of_version_2_has_the_limits_in_one_folder(tmp_path: Path) -> None:
    (tmp_path / "cgroup.subtree_control").write_text("cpuset cpu io memory pids\n")
    found = find_cgroups("us", tmp_path)
    assert found is not None
    group = found.make(memory_bytes=1000, cpus=0.5)
    assert group is not None
    (folder,) = group.folders
    assert {file.name: file.read_text() for file in folder.iterdir()} == {
        "cpu.max": "50000 100000",
        "cpu.weight": "50",
        "memory.max": "1000",
        "memory.swap.max": "0",
    }
    (tmp_path / "cgroup.subtree_control").write_text("pids\n")
    assert find_cgroups("us", tmp_path) is None


async def test_one_organisation_does_not_take_every_slot_of_spark() -> None:
    slots, ours, theirs = Slots(running=3, waiting=1, seconds=60, per_org=2), uuid4(), uuid4()
    for _ in range(2):
        await slots.take("user", ours)
    waits = asyncio.create_task(slots.take("user", ours))
    await asyncio.sleep(0)
    with pytest.raises(Busy):
        await slots.take("user", ours)
    await slots.take("user", theirs)
    also_waits = asyncio.create_task(slots.take("user", theirs))  # its own place to wait
    await asyncio.sleep(0)
    assert slots.waiting == 2
    slots.give_back("user", theirs)
    await also_waits
    assert not waits.done(), "though it waited longer"
    slots.give_back("user", ours)
    await waits
