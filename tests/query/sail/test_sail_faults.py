"""Faults of an engine: each is answered within the query's time, costs one process, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from uuid import UUID, uuid4

import pyarrow as pa
import pytest

from tests.support import ROOT
from tests.support.child_process import program
from tests.support.query.false_connect import WRONG_ANSWERS, false_connect
from tests.support.query.sail import SailSystem, sail_system, small_disk
from tests.support.waiting import until
from tracelake.errors import EngineLost, QueryTimeout
from tracelake.lite.seaweedfs import SeaweedFS
from tracelake.query.checked_query import FileFacts
from tracelake.query.engine import CannotRun
from tracelake.query.prune_files import narrowed
from tracelake.query.sail import server as server_module
from tracelake.query.sail.connect import ConnectClient, ConnectSession
from tracelake.sandbox.process import runs
from tracelake.wiring import s3_objects

pytestmark = pytest.mark.anyio
ROWS = 1000
COUNT = "SELECT count(*) AS n FROM numbers"
LONG = (
    "SELECT count(*) AS n FROM numbers a CROSS JOIN numbers b CROSS JOIN numbers c CROSS JOIN numbers d"
    " WHERE a.text || b.text <> c.text || d.text"
)
"""It would take hours."""
SLOW = "SELECT count(*) AS n FROM numbers a CROSS JOIN numbers b CROSS JOIN few WHERE a.text <> b.text"
SLOW_ROWS = 100 * (ROWS * ROWS - 6 * 143 * 143 - 142 * 142)


ANOTHER_USER = ("unshare", "--user", "--map-user=1000", "--map-group=1000")


@pytest.fixture(scope="module")
async def system(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SailSystem]:
    async with sail_system(tmp_path_factory.mktemp("sail"), max_bytes=1024 * 1024, sail_memory_mb=400) as system:
        add_tables(system)
        yield system


def add_tables(system: SailSystem) -> None:
    table = pa.table({"id": pa.array(range(ROWS), pa.int64()), "text": [f"n{n % 7}" for n in range(ROWS)]})
    system.add("numbers", table, {"id": "bigint", "text": "string"}, files=2)
    system.add("few", pa.table({"id": pa.array(range(100), pa.int64())}), {"id": "bigint"})


async def counted(system: SailSystem, text: str = COUNT, **more: object) -> list[dict[str, int]]:
    result = await system.engine.run(system.query(text, **more))  # type: ignore[arg-type]
    assert result.table is not None
    found: list[dict[str, int]] = result.table.to_pylist()
    return found


async def computes(system: SailSystem, asked: asyncio.Task[list[dict[str, int]]], org_id: UUID | None = None) -> None:
    """Wait until the organisation's engine works for the query."""
    org = org_id or system.org_id
    await until(lambda: system.pids(org), "the engine was started")
    await until(lambda: system.server(org).running, "the query runs")
    server = system.server(org)
    idle = server.processor_seconds
    await until(lambda: server.processor_seconds > idle + 0.1, "the engine computes")
    assert not asked.done()


async def test_a_frozen_engine_costs_a_query_its_time_and_the_next_one_gets_another(system: SailSystem) -> None:
    await counted(system)
    first = system.server()
    asked = asyncio.create_task(counted(system, LONG, seconds=1.5))
    await computes(system, asked)
    for pid in system.pids(system.org_id):
        os.kill(pid, signal.SIGSTOP)
    with pytest.raises(QueryTimeout):
        async with asyncio.timeout(60):
            await asked
    assert await counted(system) == [{"n": ROWS}]
    assert system.server() is not first
    await asyncio.gather(*system.engine._ending)
    assert not first.alive


async def test_an_engine_that_was_frozen_between_two_queries_is_ended_and_the_query_run_by_another(
    system: SailSystem,
) -> None:
    await counted(system)
    for pid in system.pids(system.org_id):
        os.kill(pid, signal.SIGSTOP)
    assert await counted(system) == [{"n": ROWS}]


async def test_a_query_is_cancelled_without_an_error_after_another_one_ended_their_engine(system: SailSystem) -> None:
    org = uuid4()
    await counted(system, org_id=org)
    server = system.server(org)
    session = ConnectSession(server.client)
    session.open()
    await server.end()
    await asyncio.to_thread(session.cancel)


async def test_a_bomb_costs_its_organisation_one_process_and_its_neighbours_are_run_once_more(
    system: SailSystem,
) -> None:
    other = uuid4()
    await asyncio.gather(counted(system), counted(system, org_id=other))
    untouched = set(system.pids(other))
    bomb = asyncio.create_task(counted(system, "SELECT repeat('x', 4000000) AS s FROM few ORDER BY id"))
    neighbours = [asyncio.create_task(counted(system, SLOW)) for _ in range(2)]
    beside = [await counted(system, org_id=other) for _ in range(5)]
    for neighbour in neighbours:
        assert await neighbour == [{"n": SLOW_ROWS}]
    with pytest.raises((EngineLost, CannotRun)):
        await bomb
    assert beside == [[{"n": ROWS}]] * 5
    assert set(system.pids(other)) == untouched


async def test_answers_that_break_the_protocol_are_never_rows(system: SailSystem, tmp_path: Path) -> None:
    await counted(system)
    server = system.server()
    honest = server._client
    with false_connect(tmp_path) as (false, address):
        server._client = ConnectClient(address, 1024 * 1024)
        try:
            for what, (answers, error) in WRONG_ANSWERS.items():
                false.answers = answers
                with pytest.raises(error):
                    assert await counted(system) is None, what
            false.answers = lambda: iter(lambda: [b""][false.over.wait(60)], b"")  # it never answers
            with pytest.raises(QueryTimeout):
                await counted(system, seconds=0.5)
        finally:
            server._client.close()
            server._client = honest
    await asyncio.gather(*system.engine._ending)
    assert await counted(system) == [{"n": ROWS}]


async def test_an_engine_that_listens_and_does_not_answer_counts_as_not_started(tmp_path: Path) -> None:
    """On a machine without cores to spare: its queries are left to Spark."""
    with false_connect(tmp_path) as (false, address):
        client = ConnectClient(address, 1024)
        assert await asyncio.to_thread(client.wait_until_ready, 60.0)
        false.waits = True
        assert not await asyncio.to_thread(client.wait_until_ready, 0.2)
        client.close()


async def test_an_engine_that_has_grown_ends_after_its_queries_and_the_next_query_starts_another(
    system: SailSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    org = uuid4()
    asked = asyncio.create_task(counted(system, SLOW, org_id=org))
    await computes(system, asked, org_id=org)
    first, pool = system.server(org), system.engine._pool
    lost = system.metrics.query_engines_lost.labels(str(org), "memory")._value.get()
    monkeypatch.setattr(server_module, "GROWN_SHARE", 0.01)
    await until(lambda: first in pool._retired, "it gets no more queries")
    monkeypatch.undo()
    assert await counted(system, org_id=org) == [{"n": ROWS}]
    assert system.server(org) is not first
    assert await asked == [{"n": SLOW_ROWS}]
    await until(lambda: not first.alive, "it ends after its last query")
    assert system.metrics.query_engines_lost.labels(str(org), "memory")._value.get() == lost


async def test_more_organisations_than_engines_take_turns(tmp_path: Path) -> None:
    async with sail_system(tmp_path, sail_processes=2) as system:
        add_tables(system)
        orgs = [uuid4() for _ in range(8)]
        most = 0

        async def look() -> None:
            nonlocal most
            while True:
                most = max(most, len(system.engine._pool._servers))
                await asyncio.sleep(0.01)

        looking = asyncio.create_task(look())
        answers = await asyncio.gather(*(counted(system, org_id=org) for org in [*orgs, *orgs]))
        looking.cancel()
        assert answers == [[{"n": ROWS}]] * 16
        assert most <= 2


async def test_a_query_keeps_its_files_when_they_are_replaced_and_deleted(system: SailSystem) -> None:
    """By a compaction, or by the activation of another version: then the name has other files, or another dataset."""
    before = system.relations["numbers"]
    asked = asyncio.create_task(counted(system, SLOW))
    await computes(system, asked)
    assert before.cold is not None
    files, staged = set(before.cold.files), system.server().files._staged
    await until(lambda: files <= staged.keys(), "the engine has the files of the query")
    system.objects.delete(before.cold.files)
    again = system.query(COUNT)  # resolved before the change
    small = pa.table({"id": pa.array([1], pa.int64()), "text": ["x"]})
    system.add("numbers", small, {"id": "bigint", "text": "string"})
    # While a query uses them, others find them too; an engine that is not used may end, and its files with it.
    assert (await system.engine.run(again)).table.to_pylist() == [{"n": ROWS}]  # type: ignore[union-attr]
    assert await counted(system) == [{"n": 1}]
    assert await asked == [{"n": SLOW_ROWS}]
    add_tables(system)


async def test_only_files_that_a_query_can_need_are_staged(system: SailSystem) -> None:
    table = pa.table({"block_number": pa.array(range(100), pa.int64())})
    relation = system.add("blocks", table, {"block_number": "bigint"}, files=10)
    assert relation.cold is not None
    facts = {name: FileFacts(100, 10, (10 * at, 10 * at + 9)) for at, name in enumerate(relation.cold.files)}
    system.relations["blocks"] = replace(relation, cold=replace(relation.cold, facts=facts))
    org = uuid4()
    query = system.query("SELECT count(*) AS n FROM blocks WHERE block_number BETWEEN 35 AND 44", org_id=org)
    result = await system.engine.run(replace(query, relations=narrowed(query.checked, query.relations)))
    assert result.table is not None
    assert result.table.to_pylist() == [{"n": 10}]
    assert len(system.server(org).files._staged) == 2


async def test_a_full_disk_leaves_the_query_to_spark_and_nothing_behind(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("run it as root: only root can mount a small disk")
    async with sail_system(tmp_path) as system:
        add_tables(system)
        with small_disk(system.folder / "sail"):
            await counted(system)
            wide = pa.table({"t": [os.urandom(3000).hex() for _ in range(1000)]})
            system.add("wide", wide, {"t": "string"})
            with pytest.raises(CannotRun, match="files"):
                await counted(system, "SELECT count(t) AS n FROM wide")
            assert await counted(system) == [{"n": ROWS}]
            assert len(list((system.folder / "sail").rglob("*.parquet"))) == 2
            await system.engine.close()


def started(folder: Path, *before: str) -> tuple[subprocess.Popen[bytes], dict[str, object]]:
    pipe = subprocess.PIPE
    process = subprocess.Popen([*before, *program("sail_service", str(folder))], cwd=ROOT, stdin=pipe, stdout=pipe)
    assert process.stdout is not None
    line = process.stdout.readline()
    while line and not line.startswith(b"{"):  # what it logs
        line = process.stdout.readline()
    assert line, "it ended"
    return process, json.loads(line)


async def test_a_service_that_is_killed_leaves_no_process_and_its_files_are_removed_by_the_next(
    tmp_path: Path,
) -> None:
    process, report = await asyncio.to_thread(started, tmp_path)
    pids: list[int] = report["pids"]  # type: ignore[assignment]
    groups = [Path(group) for group in report["cgroups"]]  # type: ignore[attr-defined]
    assert pids
    assert all(map(runs, pids))
    process.kill()
    process.communicate()
    await until(lambda: not any(map(runs, pids)), "the kernel has ended its engine")
    assert list((tmp_path / "sail").iterdir()), "its folder is still there"
    async with sail_system(tmp_path) as system:
        await system.engine.remove_leftovers()
        assert not (tmp_path / "sail").exists()
        assert not [group for group in groups if group.exists()]


def may_be_another_user() -> bool:
    return subprocess.run([*ANOTHER_USER, "true"], check=False).returncode == 0


async def test_a_service_that_is_not_root_runs_sail_in_a_user_namespace_and_links_files(tmp_path: Path) -> None:
    """A user namespace without rights in ours stands for another user, who could not read this checkout."""
    if os.geteuid() != 0:
        pytest.skip("this is what all other tests show then")
    if not may_be_another_user():
        pytest.skip("this machine has no user namespaces")
    process, report = await asyncio.to_thread(started, tmp_path, *ANOTHER_USER)
    process.communicate()
    assert (report["user"], report["rows"]) == (1000, [{"m": 4}])
    assert report["links"] == [2], "the file of the dataset itself"
    assert not (tmp_path / "sail").exists()


async def test_files_of_an_s3_store_are_fetched_once_by_the_service_and_no_key_enters_the_sandbox(
    seaweedfs: SeaweedFS, tmp_path: Path
) -> None:
    """The service reads them with its own key, which may read datasets and not write them."""
    settings = seaweedfs.objects_for("query")
    async with sail_system(tmp_path, objects=s3_objects(settings)) as system:
        system.objects = s3_objects(seaweedfs.objects_for("worker"))
        add_tables(system)
        assert await counted(system) == [{"n": ROWS}]
        assert settings.secret_access_key is not None
        secret = settings.secret_access_key.get_secret_value().encode()
        assert not [pid for pid in system.pids() if secret in given_to(pid)]
        numbers = system.relations["numbers"]
        assert numbers.cold is not None
        system.objects.delete(numbers.cold.files)
        assert await counted(system) == [{"n": ROWS}]
        with pytest.raises(CannotRun, match="files"):
            await counted(system, org_id=uuid4())
        assert len(list((system.folder / "sail").rglob("*.parquet"))) == 2, "nothing is left of those that failed"


def given_to(pid: int) -> bytes:
    """The environment and the arguments of a process."""
    return Path(f"/proc/{pid}/environ").read_bytes() + Path(f"/proc/{pid}/cmdline").read_bytes()
