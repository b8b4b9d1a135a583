"""Bombs of every kind from one organisation, past the gate: another one's queries are answered by the same process."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest

from tests.support.cases.sql_bombs import BOMBS
from tests.support.query.sail import SailSystem, Unchecked, sail_system
from tests.support.waiting import until
from tracelake.errors import TraceError
from tracelake.query.engine import CannotRun
from tracelake.query.sail import server as server_module

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]
ROWS = 1000
SECONDS = 0.3
AT_ONCE = 3


async def test_bombs_of_one_organisation_do_not_restart_the_engine_of_another(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every third of them, and all with `--bomb-examples` for as many."""
    monkeypatch.setattr(server_module, "GROWN_SHARE", 1.0)  # some thousand queries grow an engine, and it is replaced
    cases = list(BOMBS)[:: 1 if int(request.config.getoption("--bomb-examples")) >= len(BOMBS) else 3]
    async with sail_system(tmp_path, max_bytes=1024 * 1024, sail_memory_mb=512, stuck_seconds=0.3) as system:
        numbers = pa.array(range(ROWS), pa.int64())
        table = pa.table({"id": numbers, "name": [f"n{n}" for n in range(ROWS)], "a": [[1, 2]] * ROWS})
        system.add("granted", table, {"id": "bigint", "name": "string", "a": "array<bigint>"})
        other, verdicts = uuid4(), Counter[str]()
        for org in (other, system.org_id):
            await system.engine.run(system.query("SELECT count(*) AS n FROM granted", org_id=org))
        untouched, group = set(system.pids(other)), system.server(other)._cgroup
        assert untouched.isdisjoint(system.pids(system.org_id))
        assert group is None or set(group.folders).isdisjoint(system.server()._cgroup.folders)  # type: ignore[union-attr]
        bombs, answers = iter(cases), 0
        throwing = [asyncio.create_task(thrown(system, bombs, verdicts)) for _ in range(AT_ONCE)]
        while not all(task.done() for task in throwing):
            text = f"SELECT count(*) AS n, max(name) AS m FROM granted WHERE id <> {-1 - answers}"  # noqa: S608
            result = await system.engine.run(system.query(text, org_id=other))
            assert result.table is not None
            assert result.table.to_pylist() == [{"n": ROWS, "m": "n999"}]
            answers += 1
        await asyncio.gather(*throwing)
        assert verdicts.total() == len(cases)
        assert answers > len(cases)
        assert set(system.pids(other)) == untouched
        assert group is None or not group.was_out_of_memory()
        await until(lambda: not system.engine.in_progress("running"), "nothing of a bomb runs")


async def thrown(system: SailSystem, bombs: object, verdicts: Counter[str]) -> None:
    """Send one after the other."""
    for case in bombs:  # type: ignore[attr-defined]
        good = system.query("SELECT id FROM granted")
        checked = Unchecked(good.checked.tree, good.checked.tables, text=BOMBS[case].replace("granted", "{granted}"))
        try:
            await system.engine.run(system.of(checked, seconds=SECONDS, max_rows=100))
        except (TraceError, CannotRun) as error:
            verdicts[type(error).__name__] += 1
        else:
            verdicts["answered"] += 1
