"""An organisation's Sail: what it can read, what a bad query costs, and that nothing is left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from tests.support.cases.hostile_sql import ATTACKS, ONLY_THE_GATE
from tests.support.query.sail import SailSystem, Unchecked, open_to_all, sail_system
from tests.support.waiting import until
from tracelake.errors import Busy, EngineLost, QueryTimeout, ResultTooLarge
from tracelake.query.engine import CannotRun
from tracelake.query.sail.translate.translate import translated
from tracelake.sandbox.process import runs

pytestmark = pytest.mark.anyio
SECRET = "SECRET-5bb1"
ROWS = 1000
LONG = (
    "SELECT count(*) AS n FROM numbers a CROSS JOIN numbers b CROSS JOIN numbers c CROSS JOIN numbers d"
    " WHERE a.text || b.text <> c.text || d.text"
)
"""It would take hours."""


@pytest.fixture(scope="module")
async def system(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SailSystem]:
    async with sail_system(tmp_path_factory.mktemp("sail"), max_bytes=1024 * 1024, sail_memory_mb=512) as system:
        table = pa.table({"id": pa.array(range(ROWS), pa.int64()), "text": [f"n{n % 7}" for n in range(ROWS)]})
        system.add("numbers", table, {"id": "bigint", "text": "string"}, files=3)
        yield system


async def test_rows_come_in_the_order_and_the_types_that_were_asked_for(system: SailSystem) -> None:
    result = await system.engine.run(
        system.query("SELECT text, count(*) AS n, max(id) AS top FROM numbers GROUP BY text ORDER BY text DESC LIMIT 2")
    )
    assert result.table is not None
    assert result.table.to_pylist() == [{"text": "n6", "n": 142, "top": 993}, {"text": "n5", "n": 143, "top": 999}]
    assert [(column.name, column.type) for column in result.columns] == [
        ("text", "string"),
        ("n", "bigint"),
        ("top", "bigint"),
    ]
    assert result.engine == "sail"


async def test_more_rows_than_the_limit_are_cut_and_larger_ones_refused(system: SailSystem) -> None:
    result = await system.engine.run(system.query("SELECT id FROM numbers ORDER BY id", max_rows=10))
    assert (result.rows, result.truncated) == (10, True)
    with pytest.raises(ResultTooLarge):
        await system.engine.run(
            system.query("SELECT a.*, b.text AS other FROM numbers a CROSS JOIN numbers b", max_rows=10**6)
        )


@pytest.mark.parametrize("case", [*ATTACKS, *ONLY_THE_GATE])
async def test_without_the_gate_the_sandbox_shows_nothing(system: SailSystem, case: str) -> None:
    """Sail shows no plan that could be checked: what it can reach is the second line."""
    good = system.query("SELECT id FROM numbers")
    with open_to_all(SECRET) as secret:
        checked = Unchecked(good.checked.tree, good.checked.tables, text=hostile(case, secret))
        rows = ""
        with suppress(CannotRun, ResultTooLarge, QueryTimeout, EngineLost):
            table = (await system.engine.run(system.of(checked, seconds=3.0, max_rows=100))).table
            rows = str(table.to_pylist() if table is not None else None)
        assert SECRET not in rows
        assert str(system.folder) not in rows
        assert str(secret.parent) not in rows
        assert [path.name for path in secret.parent.iterdir()] == [secret.name]
    assert {path.name for path in system.folder.iterdir()} == {"objects", "sail"}


def hostile(case: str, secret: Path) -> str:
    if case in ATTACKS:
        return ATTACKS[case].format(file=secret, other="other", granted="{granted}")
    return ONLY_THE_GATE[case].replace("granted", "{granted}")


@pytest.mark.parametrize(
    "path", ["/", "/data", "/data/*", "/proc/self/environ", "/proc/1/cmdline", "/sys", "/root", "/run"]
)
async def test_without_the_gate_no_file_of_another_query_can_be_found(system: SailSystem, path: str) -> None:
    await system.engine.run(system.query("SELECT count(*) AS n FROM numbers"))  # its files are staged
    good = system.query("SELECT id FROM numbers")
    for kind in ("text", "binaryFile", "parquet"):
        checked = Unchecked(good.checked.tree, good.checked.tables, text=f"SELECT * FROM {kind}.`{path}`")  # noqa: S608
        try:
            result = await system.engine.run(system.of(checked, seconds=20.0))
        except (CannotRun, ResultTooLarge):
            continue
        assert result.rows == 0


async def test_a_query_that_needs_more_memory_than_queries_have_is_left_to_spark(system: SailSystem) -> None:
    held = LONG.replace("a.text || b.text <> c.text || d.text", "a.id <> b.id AND c.text <> d.text")
    with pytest.raises(CannotRun, match="memory"):
        await system.engine.run(system.query(held))


async def test_a_query_over_its_time_ends_and_the_engine_goes_on(system: SailSystem) -> None:
    with pytest.raises(QueryTimeout):
        await system.engine.run(system.query(LONG, seconds=0.5))
    assert (await system.engine.run(system.query("SELECT count(*) AS n FROM numbers"))).rows == 1


async def test_a_query_whose_caller_left_holds_no_slot_and_no_core(system: SailSystem) -> None:
    asked = asyncio.create_task(system.engine.run(system.query(LONG)))
    slots = system.engine._slots[system.org_id]
    await until(lambda: slots.running, "the query runs")
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    await asyncio.gather(*system.engine._ending)
    assert slots.running == 0


async def test_all_queries_of_an_engine_that_is_killed_are_run_once_more_by_another(system: SailSystem) -> None:
    await system.engine.run(system.query("SELECT count(*) AS n FROM numbers"))
    slow = (  # in as little memory on a busy machine as on an idle one, which a join of more rows is not
        "SELECT count(*) AS n FROM numbers a CROSS JOIN numbers b"
        " WHERE levenshtein(repeat(a.text, 20), repeat(b.text, 20)) > 0"
    )
    asked = [asyncio.create_task(system.engine.run(system.query(slow))) for _ in range(2)]
    await until(lambda: system.engine._slots[system.org_id].running == 2, "the queries run")
    server, killed = system.server(), system.pids()
    idle = server.processor_seconds
    await until(lambda: server.processor_seconds > idle + 0.1, "the engine computes")
    assert not any(task.done() for task in asked)
    for pid in killed:
        with suppress(ProcessLookupError):  # the first one's end takes the others with it
            os.kill(pid, signal.SIGKILL)
    tables: list[Any] = [(await task).table for task in asked]
    assert [table.to_pylist() for table in tables] == 2 * [[{"n": ROWS * ROWS - 6 * 143 * 143 - 142 * 142}]]
    assert set(killed).isdisjoint(system.pids(system.org_id))


async def test_a_second_organisation_has_a_process_of_its_own(system: SailSystem) -> None:
    await system.engine.run(system.query("SELECT count(*) AS n FROM numbers"))
    first = set(system.pids())
    await system.engine.run(system.query("SELECT count(*) AS n FROM numbers", org_id=uuid4()))
    assert first < set(system.pids())


async def test_each_engine_has_a_user_a_network_and_files_of_its_own(system: SailSystem) -> None:
    other, count = uuid4(), "SELECT count(*) AS n FROM numbers"
    for org in (system.org_id, other):
        await system.engine.run(system.query(count, org_id=org))
    engines = [system.pids(org)[-1] for org in (system.org_id, other)]
    ours, *theirs = [surroundings(pid) for pid in (os.getpid(), *engines)]
    assert len({ours.network, *(item.network for item in theirs)}) == 3
    assert [item.devices for item in theirs] == [["lo"], ["lo"]]
    assert [len(item.files) for item in theirs] == [3, 3], "the files of the table"
    assert theirs[0].files.isdisjoint(theirs[1].files)
    assert os.geteuid() != 0 or len({item.user for item in theirs} - {0}) == 2


class Surroundings(NamedTuple):
    """What a process sees, and who it is."""

    user: int
    network: str
    devices: list[str]
    files: set[str]


def surroundings(pid: int) -> Surroundings:
    process = Path(f"/proc/{pid}")
    devices = [line.split(":")[0].strip() for line in (process / "net/dev").read_text().splitlines()[2:]]
    data = process / "root/data"
    files = {path.name for path in data.iterdir()} if data.is_dir() else set()
    return Surroundings(process.stat().st_uid, str((process / "ns/net").readlink()), devices, files)


async def test_a_query_that_is_not_for_sail_takes_no_process(tmp_path: Path) -> None:
    async with sail_system(tmp_path, translate=translated) as system:
        system.add("few", pa.table({"id": pa.array(range(5), pa.int64())}), {"id": "bigint"})
        with pytest.raises(CannotRun, match="function"):
            await system.engine.run(system.query("SELECT sum(double(id)) AS s FROM few"))
        assert not system.pids()
        assert not system.engine._slots


async def test_an_engine_over_its_memory_is_ended_and_its_query_refused(tmp_path: Path) -> None:
    async with sail_system(tmp_path, sail_memory_mb=256, max_bytes=2**30) as system:
        system.add("few", pa.table({"id": pa.array(range(200), pa.int64())}), {"id": "bigint"})
        bomb = "SELECT repeat('x', 4000000) AS s FROM few ORDER BY id"
        with pytest.raises(EngineLost):
            await system.engine.run(system.query(bomb, seconds=60.0, max_rows=2000))
        assert (await system.engine.run(system.query("SELECT count(*) AS n FROM few"))).rows == 1


async def test_rows_that_sail_left_out_are_never_an_answer(system: SailSystem) -> None:
    """A batch of more than 2 GB makes Sail panic, which ends the rows without an error."""
    with pytest.raises((CannotRun, EngineLost)):
        await system.engine.run(system.query("SELECT repeat('x', 4000000) AS s FROM numbers", max_rows=2000))


async def test_an_idle_engine_makes_room_and_a_busy_one_does_not(tmp_path: Path) -> None:
    async with sail_system(tmp_path, sail_processes=1, wait_seconds=0.5) as system:
        system.add("few", pa.table({"id": pa.array(range(2000), pa.int64())}), {"id": "bigint"})
        await system.engine.run(system.query("SELECT count(*) AS n FROM few"))
        other = uuid4()
        await system.engine.run(system.query("SELECT count(*) AS n FROM few", org_id=other))
        assert list(system.engine._pool._servers) == [other]
        long = "SELECT count(*) AS n FROM few a CROSS JOIN few b CROSS JOIN few c WHERE a.id <> b.id"
        asked = asyncio.create_task(system.engine.run(system.query(long, org_id=other)))
        await until(lambda: system.engine._slots[other].running, "the query runs")
        await asyncio.sleep(0)
        with pytest.raises(Busy):
            await system.engine.run(system.query("SELECT count(*) AS n FROM few"))
        asked.cancel()
        await asyncio.wait({asked})


async def test_nothing_is_left_behind(tmp_path: Path) -> None:
    async with sail_system(tmp_path, sail_idle_seconds=0.2) as system:
        system.add("few", pa.table({"id": pa.array(range(5), pa.int64())}), {"id": "bigint"})
        await system.engine.run(system.query("SELECT count(*) AS n FROM few"))
        pids = system.pids()
        await until(lambda: not system.engine._pool._servers, "the idle engine is ended")
        await system.engine.run(system.query("SELECT count(*) AS n FROM few"))
        pids += system.pids()
    assert not [pid for pid in pids if runs(pid)]
    assert not (tmp_path / "sail").exists()


async def test_a_file_that_cannot_be_staged_is_left_to_spark(tmp_path: Path) -> None:
    async with sail_system(tmp_path) as system:
        relation = system.add("few", pa.table({"id": pa.array(range(5), pa.int64())}), {"id": "bigint"})
        assert relation.cold is not None
        system.objects.delete(relation.cold.files)
        with pytest.raises(CannotRun, match="files"):
            await system.engine.run(system.query("SELECT count(*) AS n FROM few"))
        assert not list((tmp_path / "sail").rglob("*.parquet"))


async def test_without_the_module_queries_are_left_to_spark_and_what_is_missing_is_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pysail", None)  # as where it is not installed
    async with sail_system(tmp_path) as system:
        system.add("few", pa.table({"id": pa.array(range(5), pa.int64())}), {"id": "bigint"})
        with capture_logs() as logs:
            for _ in range(2):
                with pytest.raises(CannotRun, match="not_set_up"):
                    await system.engine.run(system.query("SELECT count(*) AS n FROM few"))
    assert [(line["event"], line["hint"]) for line in logs if line["log_level"] == "warning"] == [
        ("Sail cannot run queries; Spark runs all of them", "pip install 'pysail>=0.7.2,<0.8'")
    ]
