"""`trace query` and `trace datasets sample` against a running Gateway."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import logging
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import structlog

from tests.support.systems.query import ROWS, QuerySystem
from tracelake.cli import main
from tracelake.cli.commands.data.udf_test import _dataset
from tracelake.errors import InvalidSql

pytestmark = pytest.mark.anyio
TOP = "SELECT block_number, value, X'ff' AS b FROM orders ORDER BY block_number LIMIT 2"


Trace = Callable[..., Awaitable[tuple[int, bytes, str]]]


@pytest.fixture
def trace(
    monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes], tmp_path: Path
) -> Iterator[Trace]:
    """Run a verb in a thread of this process; return its exit code and what it has printed."""

    def run(*words: str) -> tuple[int, bytes, str]:
        monkeypatch.setattr(sys, "argv", ["trace", *words])
        monkeypatch.setattr(sys, "stdin", io.StringIO(TOP))
        capsysbinary.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsysbinary.readouterr()
        return int(ended.value.code or 0), out, err.decode()

    async def run_at(system: QuerySystem, *words: str) -> tuple[int, bytes, str]:
        connect(monkeypatch, system, tmp_path)
        return await asyncio.to_thread(run, *words)

    # The service runs in this process too, and its log must not stand in what a verb prints.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    yield run_at
    structlog.reset_defaults()


def connect(monkeypatch: pytest.MonkeyPatch, system: QuerySystem, home: Path) -> None:
    monkeypatch.setenv("TRACE_HOME", str(home))
    monkeypatch.setenv("TRACE_CLIENT__GATEWAY_URL", str(system.gateway.base_url).rstrip("/"))
    monkeypatch.setenv("TRACE_CLIENT__CA", str(system.operators.walk.ca))
    monkeypatch.setenv("TRACE_CLIENT__TOKEN", system.token("reader"))


async def test_a_query_prints_a_table_csv_json_parquet_or_arrow(
    system: QuerySystem, trace: Trace, tmp_path: Path
) -> None:
    code, out, err = await trace(system, "query", TOP)
    assert (code, "0xff" in out.decode(), "2 rows" in out.decode()) == (0, True, True), err
    _, out, _ = await trace(system, "query", "-", "--format", "csv")
    assert list(csv.reader(io.StringIO(out.decode()))) == [
        ["block_number", "value", "b"],
        ["0", "0", "0xff"],
        ["1", "10", "0xff"],
    ]
    _, out, _ = await trace(system, "query", TOP, "--format", "json")
    assert json.loads(out)[1] == {"block_number": 1, "value": 10, "b": "0xff"}
    file = tmp_path / "rows.parquet"
    await trace(system, "query", TOP, "--format", "parquet", "--output", str(file))
    assert pq.read_table(file).column("b").to_pylist() == [b"\xff", b"\xff"]
    _, out, _ = await trace(system, "query", TOP, "--format", "arrow")
    assert pa.ipc.open_stream(out).read_all().num_rows == 2


async def test_a_query_shows_which_engine_ran_it(system: QuerySystem, auto_system: QuerySystem, trace: Trace) -> None:
    count, other = "SELECT count(*) AS n FROM orders", "SELECT stddev(value) AS s FROM orders"
    asked = ((system, count), (auto_system, count), (auto_system, other))
    shown = [(await trace(service, "query", sql))[1].decode() for service, sql in asked]
    assert ["on Sail" in text for text in shown] == [False, True, False]
    assert ["on Spark" in text for text in shown] == [True, False, True]


async def test_a_query_says_that_a_dataset_has_not_caught_up(system: QuerySystem, trace: Trace) -> None:
    count, pool = "SELECT count(*) AS n FROM orders", system.pool
    await pool.execute(
        "INSERT INTO dags_behind SELECT org_id, dag_name, 'infinity' FROM dag_current_versions"
        " ON CONFLICT (org_id, dag_name) DO UPDATE SET since = excluded.since"
    )
    try:
        code, out, err = await trace(system, "query", count)
        assert code == 0, err
        assert "orders is not complete" in out.decode() + err
        _, out, _ = await trace(system, "query", count, "--json")
        assert [dataset["behind"] for dataset in json.loads(out)["datasets"]] == [0]
    finally:
        await pool.execute("DELETE FROM dags_behind")
    _, out, err = await trace(system, "query", count)
    assert "not complete" not in out.decode() + err


async def test_datasets_sample_shows_rows_as_of_a_commit(system: QuerySystem, trace: Trace) -> None:
    code, out, err = await trace(system, "datasets", "sample", "orders", "--limit", "3", "--json")
    assert (code, json.loads(out)["row_count"]) == (0, 3), err
    commit = json.loads(out)["datasets"][0]["commit"]
    count = "SELECT count(*) AS n FROM orders"
    _, out, _ = await trace(system, "query", count, "--as-of", f"orders={commit}", "--json")
    assert json.loads(out)["rows"] == [[ROWS]]


async def test_diff_shows_what_two_commits_have_and_exits_with_1_if_they_differ(
    system: QuerySystem, trace: Trace
) -> None:
    before = await system.add("feed", 5)
    added = await system.add("feed", 2)
    code, out, err = await trace(system, "diff", "feed", "--key", "block_number")
    assert code == 1, err
    shown = out.decode()
    assert "keys only in B" in shown
    assert str(added) in shown
    code, out, _ = await trace(system, "diff", "feed", "--rows", "1", "--json")
    found = json.loads(out)
    assert (code, found["only_a"], found["only_b"], len(found["differing"])) == (1, 0, 2, 1)
    last = str(found["b"]["commit"])
    assert (await trace(system, "diff", "feed", last, last, "--range", f"{before}-{added + 1}"))[0] == 0
    generation = found["b"]["dataset_version"]
    code, out, err = await trace(system, "diff", "feed", generation)
    assert (code, f"generation {generation}" in out.decode()) == (0, True), err
    code, _, err = await trace(system, "diff", "feed", "--range", "9-1")
    assert (code, "Traceback" in err) == (1, False), err


async def test_a_refused_query_prints_its_code_and_exits_with_1(system: QuerySystem, trace: Trace) -> None:
    code, _, err = await trace(system, "query", "SELECT nope FROM orders")
    assert (code, "invalid_sql" in err, "Traceback" in err) == (1, True, False)
    code, _, err = await trace(system, "query", TOP, "--as-of", "orders=soon")
    assert (code, "--as-of" in err) == (1, True)


async def test_a_published_dataset_is_exported_to_a_file_for_testing_a_function(
    system: QuerySystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(monkeypatch, system, tmp_path)
    name, file = await asyncio.to_thread(_dataset, "orders", None, tmp_path)
    assert (name, pq.read_table(file).num_rows) == ("orders", ROWS)
    with pytest.raises(InvalidSql):
        await asyncio.to_thread(_dataset, "pay", None, tmp_path)  # the reader may not see it
