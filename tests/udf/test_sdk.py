"""The author's SDK against the real listeners: what a function does through it is what the platform then knows."""

from __future__ import annotations

import ast
import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import ROOT
from tests.support.udf.lambda_functions import Functions, functions
from tests.support.verbs import cancel_task
from trace_udf.rows import batches
from trace_udf.task import Task
from tracelake.domain.access.object_names import ObjectName
from tracelake.lite.seaweedfs import SeaweedFS

SDK = ROOT / "trace_udf"


@pytest.fixture
async def there(state_db: str, queue_db: str, tmp_path: Path, seaweedfs: SeaweedFS) -> AsyncIterator[Functions]:
    async with functions(state_db, queue_db, tmp_path, seaweedfs) as made:
        yield made


GOOD = """
from trace_udf import udf

@udf
def handler(task):
    assert (task.config["limit"], task.attempt) == (5, 1)
    assert (task.scope["start"], task.scope["end"]) == (0, 9)
    assert task.inputs[0]["alias"] == "orders"
    rows = [{"dedupe_key": f"k{n}", "severity": "high", "amount": n} for n in (3, 1, 2)]
    assert task.publish(rows, dataset="alert_events", key="dedupe_key") == 3
    assert task.publish(reversed(rows), key="dedupe_key") == 3
    task.progress(3, 3, "published")
    task.emit("watch_told", start=0, end=9)
    task.log.warning("three rows")
    task.state = {"seen": 3}
"""


@pytest.mark.anyio
async def test_a_function_publishes_emits_saves_state_and_completes(there: Functions) -> None:
    claimed = await there.claimed()
    answer, message = await there.run(GOOD, claimed)
    assert answer["status"] == "Completed"
    assert "WARNING three rows\n" in message
    assert await there.status(claimed.task.task_id) == ("Completed", None, False)
    (batch,) = await there.batches()  # in another order it was the same one
    body = there.walk.control.objects.get(ObjectName.parse(batch["batch_uri"]))
    assert [json.loads(line)["dedupe_key"] for line in body.splitlines()] == ["k1", "k2", "k3"]
    pool = there.walk.control.pool
    assert await pool.fetchval("SELECT record_count FROM buffer_publishes") == 3
    sql = "SELECT d.name FROM events e JOIN datasets d ON d.id = e.dataset_uuid WHERE e.producer_task_id = $1"
    assert [row["name"] for row in await pool.fetch(sql, claimed.task.task_id)] == ["watch_told"]
    assert await pool.fetchval("SELECT state FROM operator_state") == {"seen": 3}


FAILURES = {
    "raise ValueError('no luck')": ("ValueError: no luck", True),
    "import trace_udf; raise trace_udf.Final('never')": ("Final: never", False),
    "raise SystemExit(3)": ("SystemExit: 3", True),
    "task.publish([{'dedupe_key': 'a'}], dataset='orders')": ("no 'orders' as buffered dataset", True),
    "task.emit('watch_told', start=9, end=0)": ("POST /v1/task/complete was refused (400 invalid_request)", False),
    "task.publish([{'dedupe_key': None}], key='dedupe_key')": ("row 0 has no 'dedupe_key'", True),
}


@pytest.mark.anyio
async def test_an_exception_of_a_function_fails_the_attempt_with_its_message_and_place(there: Functions) -> None:
    for number, (line, (message, retried)) in enumerate(FAILURES.items()):
        claimed = await there.claimed(start=100 * number, end=100 * number + 9)
        code = f"from trace_udf import udf\n\n@udf\ndef handler(task):\n    {line}\n"
        answer, _ = await there.run(code, claimed)
        assert (answer["status"], answer["retryable"]) == ("Failed", retried), line
        assert message in answer["error_message"]
        status, error, again = await there.status(claimed.task.task_id)
        assert (status, message in (error or ""), again) == ("Failed", True, retried), line


BUSY = "{'code': 'busy', 'message': 'no free place', 'retryable': True}"
PYTHON_BUSY = f"""
import trace_udf

@trace_udf.udf
def handler(task):
    raise trace_udf.Refused('POST /v1/task/query', 429, {BUSY})
"""
NODE_BUSY = f"""
const {{ udf, Refused }} = require({json.dumps(str(SDK / "node" / "trace_udf.js"))});
exports.handler = udf(async () => {{ throw new Refused("POST /v1/task/query", 429, {BUSY.replace("True", "true")}); }});
"""


@pytest.mark.anyio
@pytest.mark.parametrize(("code", "file"), [(PYTHON_BUSY, "main.py"), (NODE_BUSY, "main.js")], ids=["python", "node"])
async def test_a_function_that_found_the_platform_busy_did_not_use_up_an_attempt(
    there: Functions, code: str, file: str
) -> None:
    claimed = await there.claimed()
    answer, _ = await there.run(code, claimed, file=file)
    assert (answer["status"], answer["error_code"]) == ("Failed", "busy")
    faults = "SELECT platform_failures, fault::text FROM tasks WHERE id = $1"
    assert tuple(await there.walk.control.pool.fetchrow(faults, claimed.task.task_id) or ()) == (1, "platform")


ALERTS = """
from datetime import datetime, timezone
from trace_udf import udf

@udf
def handler(task):
    large = task.alerts[0]
    for n in range(3):
        task.alert(large, dedupe_key=f"tx{n % 2}", event_time=datetime(2026, 1, 1, tzinfo=timezone.utc),
                   chain_id=1, block_number=7, tx_hash=b"\\x01\\xff", payload={"n": n})
    task.alert("large", dedupe_key="by name", event_time="2026-01-01T00:00:00Z", severity="critical")
"""

NODE_ALERTS = f"""
const {{ udf }} = require({json.dumps(str(SDK / "node" / "trace_udf.js"))});
exports.handler = udf(async (task) => {{
  const large = task.alerts[0];
  for (let n = 0; n < 3; n += 1) {{
    await task.alert(large, {{ dedupe_key: `tx${{n % 2}}`, event_time: "2026-01-01T00:00:00+00:00", chain_id: 1,
                              block_number: 7, block_hash: null, tx_hash: Buffer.from([1, 255]), payload: {{ n }} }});
  }}
  await task.alert("large", {{ dedupe_key: "by name", event_time: "2026-01-01T00:00:00Z", severity: "critical" }});
  const unknown = task.alert("larger", {{ dedupe_key: "x" }});
  await unknown.then(() => {{ throw new Error("taken"); }}, (no) => task.log.warn(no));
}});
"""


@pytest.mark.anyio
@pytest.mark.parametrize(("code", "file"), [(ALERTS, "main.py"), (NODE_ALERTS, "main.js")], ids=["python", "node"])
async def test_alerts_are_one_batch_with_one_row_for_each_key(there: Functions, code: str, file: str) -> None:
    claimed = await there.claimed()
    alert = {"alert_definition_id": "7d444840-9dc0-11d1-b245-5ffdce74fad2", "name": "large", "severity": "warning"}
    answer, _ = await there.run(code, claimed, file=file, alerts=[alert])
    assert answer == {"status": "Completed"}
    (batch,) = await there.batches()
    rows = there.walk.control.objects.get(ObjectName.parse(batch["batch_uri"])).splitlines()
    found = {row["dedupe_key"]: row for row in map(json.loads, rows)}
    assert sorted(found) == ["by name", "tx0", "tx1"]
    assert found["tx0"] == {
        "alert_definition_id": alert["alert_definition_id"],
        "dedupe_key": "tx0",
        "event_time": "2026-01-01T00:00:00+00:00",
        "chain_id": 1,
        "block_number": 7,
        "tx_hash": "0x01ff",
        "severity": "warning",
        "payload": {"n": 2},
    }
    assert found["by name"]["severity"] == "critical"


@pytest.mark.anyio
@pytest.mark.parametrize(("code", "file"), [(ALERTS, "main.py"), (NODE_ALERTS, "main.js")], ids=["python", "node"])
async def test_alerts_go_to_the_jobs_own_dataset_whatever_its_name(there: Functions, code: str, file: str) -> None:
    claimed = await there.claimed()
    own, other_output = (msgspec.to_builtins(output) for output in claimed.task.outputs)
    alert = {"alert_definition_id": "7d444840-9dc0-11d1-b245-5ffdce74fad2", "name": "large", "severity": "warning"}
    answer, _ = await there.run(
        code, claimed, file=file, alerts=[alert], outputs=[{**own, "name": "whales"}, other_output]
    )
    assert answer == {"status": "Completed"}
    (batch,) = await there.batches()
    assert own["dataset_uuid"] in batch["batch_uri"]


@pytest.mark.parametrize(
    ("names", "wanted", "goes_to"),
    [
        (["whales"], None, "whales"),
        (["rows", "alert_events"], None, "alert_events"),
        (["rows", "whales"], "whales", "whales"),
        (["rows", "whales"], None, None),
        ([], None, None),
    ],
)
def test_with_several_datasets_alerts_go_to_the_named_one(
    names: list[str], wanted: str | None, goes_to: str | None
) -> None:
    outputs = [
        {"name": name, "dataset_uuid": name, "output_index": n, "storage_location": f"postgres_table:buffered.t{n}"}
        for n, name in enumerate(names)
    ]
    alerts = [{"alert_definition_id": "a", "name": "large", "severity": "warning"}]
    task = Task({**BARE, "outputs": outputs, "alerts": alerts})
    if goes_to is None:
        with pytest.raises(ValueError, match="has not exactly one buffered dataset"):
            task.alert("large", dedupe_key="k", event_time="2026-01-01T00:00:00Z", dataset=wanted)
    else:
        task.alert("large", dedupe_key="k", event_time="2026-01-01T00:00:00Z", dataset=wanted)
        assert list(task._waiting) == [goes_to]


BARE = {"task_id": "t", "attempt": 1, "job": {"dag_name": "d", "name": "j"}, "capability_token": "x.y.z"}
SPINS = """
from trace_udf import udf

@udf
def handler(task):
    while True:
        try:
            sum(range(100))
        except Exception:
            pass
"""


@pytest.mark.anyio
async def test_a_function_whose_task_is_canceled_is_ended_whatever_it_catches(there: Functions) -> None:
    claimed = await there.claimed()
    control, task = there.walk.control, claimed.task.task_id
    running = asyncio.create_task(there.run(SPINS, claimed, heartbeat_seconds=1))
    await cancel_task(control, there.walk.org.id, task, "changed our mind")
    answer, message = await running
    assert answer["status"] == "Canceled"
    assert "the attempt is over" in message
    assert (await there.status(task))[0] == "Canceled"


@pytest.mark.anyio
async def test_a_wrapped_function_returns_its_end_and_reports_nothing_itself(there: Functions) -> None:
    claimed = await there.claimed()
    answer, _ = await there.run(GOOD, claimed, completes="wrapper")
    assert (answer["status"], answer["state"], answer["progress"]["message"]) == (
        "Completed",
        {"seen": 3},
        "published",
    )
    assert len(answer["events"]) == 1
    assert (await there.status(claimed.task.task_id))[0] == "Running"


SCRIPT = """
const { udf } = require(process.env.TRACE_UDF_JS);
exports.handler = udf(async (task) => {
  const rows = [3, 1, 2].map((n) => ({ dedupe_key: `k${n}`, severity: "high", amount: n }));
  await task.publish(rows, { dataset: "alert_events", key: "dedupe_key" });
  await task.publish(rows.reverse(), { key: "dedupe_key" });
  await task.progress(3, 3, "published");
  task.emit("watch_told", { start: 0, end: 9 });
  task.log.warn("three rows");
  if (task.scope.start === 100) throw new Error("no luck");
});
"""


@pytest.mark.anyio
async def test_a_node_function_does_the_same(there: Functions) -> None:
    script = SCRIPT.replace("process.env.TRACE_UDF_JS", json.dumps(str(SDK / "node" / "trace_udf.js")))
    claimed = await there.claimed()
    answer, message = await there.run(script, claimed, file="main.js")
    assert (answer["status"], "WARNING three rows\n" in message) == ("Completed", True)
    assert (await there.status(claimed.task.task_id))[0] == "Completed"
    (batch,) = await there.batches()
    body = there.walk.control.objects.get(ObjectName.parse(batch["batch_uri"]))
    assert [json.loads(line)["dedupe_key"] for line in body.splitlines()] == ["k1", "k2", "k3"]
    failing = await there.claimed(start=100, end=109)
    answer, _ = await there.run(script, failing, file="main.js")
    assert (answer["status"], "no luck" in answer["error_message"]) == ("Failed", True)


VALUES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text())
ROWS = st.lists(st.dictionaries(st.sampled_from("abc"), VALUES), max_size=30)


@given(ROWS, st.integers(10, 200))
def test_rows_cut_into_batches_are_the_same_rows_in_their_order(rows: list[dict[str, Any]], most: int) -> None:
    made = list(batches(rows, most=most))
    lines = [line for batch in made for line in batch.body.split(b"\n") if line]
    assert [json.loads(line) for line in lines] == rows
    assert sum(batch.rows for batch in made) == len(rows)
    assert all(len(batch.body) <= most or batch.rows == 1 for batch in made)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers()), max_size=20), st.randoms(use_true_random=False))
def test_of_rows_with_one_key_the_last_counts_and_the_order_of_others_does_not(
    pairs: list[tuple[int, int]], random: Any
) -> None:
    rows = [{"k": k, "v": v} for k, v in pairs]
    last = {k: v for k, v in pairs}  # noqa: C416 - the last one of each
    body = b"".join(batch.body for batch in batches(rows, "k"))
    assert {row["k"]: row["v"] for row in map(json.loads, body.splitlines())} == last
    shuffled = [{"k": k, "v": v} for k, v in last.items()]
    random.shuffle(shuffled)
    assert b"".join(batch.body for batch in batches(shuffled, "k")) == body


@pytest.mark.parametrize("row", [{"a": float("nan")}, {"a": object()}, {"a": "x" * (1 << 20)}, 5, {"a": {1: 2}.keys}])
def test_a_row_that_cannot_be_stored_is_named(row: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="row 1"):
        list(batches([{"a": 1}, row]))


def test_the_sdk_is_python_3_9_and_needs_nothing_but_the_standard_library() -> None:
    import sys

    files = sorted(SDK.glob("*.py"))
    assert SDK / "__init__.py" in files
    for file in files:
        tree = ast.parse(file.read_text(), feature_version=(3, 9))
        for node in ast.walk(tree):
            names = [item.name for item in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                assert name.partition(".")[0] in {"trace_udf", *sys.stdlib_module_names}, (file, name)
