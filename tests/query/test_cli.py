"""`trace query` and `trace datasets sample` against a running Gateway."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import os
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.systems.query import ROWS, QuerySystem
from tracelake.cli.commands.data.udf_test import _dataset
from tracelake.errors import InvalidSql

pytestmark = pytest.mark.anyio
TOP = "SELECT block_number, value, X'ff' AS b FROM orders ORDER BY block_number LIMIT 2"


async def trace(system: QuerySystem, *words: str, home: Path) -> tuple[int, bytes, str]:
    env = {
        **os.environ,
        "TRACE_HOME": str(home),
        "TRACE_CLIENT__GATEWAY_URL": str(system.gateway.base_url).rstrip("/"),
        "TRACE_CLIENT__CA": str(system.operators.walk.ca),
        "TRACE_CLIENT__TOKEN": system.token("reader"),
    }
    argv = [sys.executable, "-m", "tracelake", *words]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe, stderr=pipe, env=env)
    out, err = await process.communicate(TOP.encode())
    return process.returncode or 0, out, err.decode()


async def test_a_query_prints_a_table_csv_json_parquet_or_arrow(system: QuerySystem, tmp_path: Path) -> None:
    code, out, err = await trace(system, "query", TOP, home=tmp_path)
    assert (code, "0xff" in out.decode(), "2 rows" in out.decode()) == (0, True, True), err
    _, out, _ = await trace(system, "query", "-", "--format", "csv", home=tmp_path)
    assert list(csv.reader(io.StringIO(out.decode()))) == [
        ["block_number", "value", "b"],
        ["0", "0", "0xff"],
        ["1", "10", "0xff"],
    ]
    _, out, _ = await trace(system, "query", TOP, "--format", "json", home=tmp_path)
    assert json.loads(out)[1] == {"block_number": 1, "value": 10, "b": "0xff"}
    file = tmp_path / "rows.parquet"
    await trace(system, "query", TOP, "--format", "parquet", "--output", str(file), home=tmp_path)
    assert pq.read_table(file).column("b").to_pylist() == [b"\xff", b"\xff"]
    _, out, _ = await trace(system, "query", TOP, "--format", "arrow", home=tmp_path)
    assert pa.ipc.open_stream(out).read_all().num_rows == 2


async def test_a_query_shows_which_engine_ran_it(system: QuerySystem, auto_system: QuerySystem, tmp_path: Path) -> None:
    count, other = "SELECT count(*) AS n FROM orders", "SELECT stddev(value) AS s FROM orders"
    asked = ((system, count), (auto_system, count), (auto_system, other))
    shown = [(await trace(service, "query", sql, home=tmp_path))[1].decode() for service, sql in asked]
    assert ["on Sail" in text for text in shown] == [False, True, False]
    assert ["on Spark" in text for text in shown] == [True, False, True]


async def test_datasets_sample_shows_rows_as_of_a_commit(system: QuerySystem, tmp_path: Path) -> None:
    code, out, err = await trace(system, "datasets", "sample", "orders", "--limit", "3", "--json", home=tmp_path)
    assert (code, json.loads(out)["row_count"]) == (0, 3), err
    commit = json.loads(out)["datasets"][0]["commit"]
    count = "SELECT count(*) AS n FROM orders"
    _, out, _ = await trace(system, "query", count, "--as-of", f"orders={commit}", "--json", home=tmp_path)
    assert json.loads(out)["rows"] == [[ROWS]]


async def test_diff_shows_what_two_commits_have_and_exits_with_1_if_they_differ(
    system: QuerySystem, tmp_path: Path
) -> None:
    await system.make("feed", 7000, 7004)
    await system.make("feed", 7005, 7006)
    code, out, err = await trace(system, "diff", "feed", "--key", "block_number", home=tmp_path)
    assert code == 1, err
    shown = out.decode()
    assert "keys only in B" in shown
    assert "7005" in shown
    code, out, _ = await trace(system, "diff", "feed", "--rows", "1", "--json", home=tmp_path)
    found = json.loads(out)
    assert (code, found["only_a"], found["only_b"], len(found["differing"])) == (1, 0, 2, 1)
    last = str(found["b"]["commit"])
    assert (await trace(system, "diff", "feed", last, last, "--range", "7000-7006", home=tmp_path))[0] == 0
    generation = found["b"]["dataset_version"]
    code, out, err = await trace(system, "diff", "feed", generation, home=tmp_path)
    assert (code, f"generation {generation}" in out.decode()) == (0, True), err
    code, _, err = await trace(system, "diff", "feed", "--range", "9-1", home=tmp_path)
    assert (code, "Traceback" in err) == (1, False), err


async def test_a_refused_query_prints_its_code_and_exits_with_1(system: QuerySystem, tmp_path: Path) -> None:
    code, _, err = await trace(system, "query", "SELECT nope FROM orders", home=tmp_path)
    assert (code, "invalid_sql" in err, "Traceback" in err) == (1, True, False)
    code, _, err = await trace(system, "query", TOP, "--as-of", "orders=soon", home=tmp_path)
    assert (code, "--as-of" in err) == (1, True)


async def test_a_published_dataset_is_exported_to_a_file_for_testing_a_function(
    system: QuerySystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACE_HOME", str(tmp_path))
    monkeypatch.setenv("TRACE_CLIENT__GATEWAY_URL", str(system.gateway.base_url).rstrip("/"))
    monkeypatch.setenv("TRACE_CLIENT__CA", str(system.operators.walk.ca))
    monkeypatch.setenv("TRACE_CLIENT__TOKEN", system.token("reader"))
    name, file = await asyncio.to_thread(_dataset, "orders", None, tmp_path)
    assert (name, pq.read_table(file).num_rows) == ("orders", ROWS)
    with pytest.raises(InvalidSql):
        await asyncio.to_thread(_dataset, "pay", None, tmp_path)  # the reader may not see it
