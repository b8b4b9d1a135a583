"""`trace udf test` runs a bundle on this machine and shows what it would do."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from tests.support.spark.session import shared_session
from trace_udf import Task, udf
from trace_udf.connections import close
from tracelake.errors import BadInput, InvalidRequest
from tracelake.lite.local_run.endpoints import LocalEndpoints
from tracelake.lite.local_run.rows import LocalDatasets
from tracelake.lite.local_run.run import LocalResult, LocalTask, _invocation, run_locally
from tracelake.udf.pack import pack
from tracelake.udf.sandbox_listener import SandboxListener
from tracelake.wire.task.lifecycle import HeartbeatAnswer, HeartbeatRequest

QUERIES = """
from trace_udf import udf

@udf
def handler(task):
    rows = task.query("SELECT o.id, o.amount FROM orders o JOIN names n USING (id) WHERE amount > 2 ORDER BY 1")
    task.publish(({"dedupe_key": row["id"], "amount": row["amount"]} for row in rows), key="dedupe_key")
"""
USES_EVERYTHING = """
import sys
from trace_udf import udf

@udf
def handler(task):
    print("to stdout")
    task.log.warning("limit is %s", task.config["limit"])
    task.publish([{"dedupe_key": "a"}], dataset="large")
    task.publish([{"dedupe_key": "a"}], dataset="large")
    task.alert("big", dedupe_key="x", event_time="2026-01-01T00:00:00Z")
    task.emit("ranges", start=task.scope["start"], end=task.scope["end"])
    task.progress(1, 2, "half")
    task.state = {"seen": task.state["seen"] + 1}
    try:
        import pyarrow
    except ImportError:
        task.log.info("only the bundle's own")
"""


def run_code(folder: Path, code: str, name: str = "main.py", **task: Any) -> LocalResult:
    source = folder / "code"
    source.mkdir(exist_ok=True)
    (source / name).write_text(code)
    (source / name).chmod(0o755)
    return run_locally(pack(source), LocalTask(**task))


def test_everything_a_function_does_is_shown(tmp_path: Path) -> None:
    result = run_code(
        tmp_path,
        USES_EVERYTHING,
        publishes=["large", "alert_events"],
        emits=["ranges"],
        scope={"start": 0, "end": 9},
        config={"limit": 5},
        state={"seen": 1},
        alerts=[{"name": "big", "severity": "critical"}],
    )
    assert (result.status, result.error, result.state, result.progress) == (
        "Completed",
        None,
        {"seen": 2},
        {"done": 1, "total": 2, "message": "half"},
    )
    assert result.rows["large"] == [{"dedupe_key": "a"}]  # the same batch twice is one
    assert [(row["dedupe_key"], row["severity"]) for row in result.rows["alert_events"]] == [("x", "critical")]
    assert result.events == [{"output": "ranges", "start": 0, "end": 9}]
    for line in ("to stdout", "WARNING limit is 5", "INFO only the bundle's own"):
        assert line in result.log.splitlines()


def test_a_function_that_fails_says_why(tmp_path: Path) -> None:
    failing = "from trace_udf import udf\n\n@udf\ndef handler(task):\n    raise ValueError('no luck')\n"
    result = run_code(tmp_path, failing)
    assert (result.status, (result.error or "").splitlines()[0]) == ("Failed", "ValueError: no luck")
    result = run_code(tmp_path, "def handler(event, context): return 1\n")
    assert (result.status, result.error) == ("Failed", "it ended without having completed")
    result = run_code(tmp_path, "raise SystemExit(3)\n")
    assert (result.status, result.error) == ("Failed", "it exited with 3")
    result = run_code(tmp_path, "import time\ndef handler(event, context): time.sleep(600)\n", seconds=1.0)
    assert (result.status, result.error) == ("Failed", "it ran longer than 1 s, and was ended")


def test_node_and_any_executable_run_too(tmp_path: Path) -> None:
    script = """
    const { udf } = require("./trace_udf");
    exports.handler = udf(async (task) => { await task.publish([{ k: 1n, b: Buffer.from([1, 255]) }]); });
    """
    (tmp_path / "node").mkdir()
    result = run_code(tmp_path / "node", script, "main.js", publishes=["large"])
    assert (result.status, result.rows) == ("Completed", {"large": [{"k": "1", "b": "0x01ff"}]})
    assert shutil.which("python3")
    bootstrap = """#!/usr/bin/env python3
import json, os, urllib.request as web
api = f"http://{os.environ['AWS_LAMBDA_RUNTIME_API']}/2018-06-01/runtime/invocation"
while True:
    with web.urlopen(f"{api}/next") as answer:
        event, request = json.load(answer), answer.headers["Lambda-Runtime-Aws-Request-Id"]
    done = {"status": "Completed", **{name: event[name] for name in ("task_id", "attempt", "lease_token")}}
    shown = {"X-Trace-Task-Capability": event["capability_token"]}
    web.urlopen(web.Request(os.environ["TRACE_TASK_URL"] + "/v1/task/complete", json.dumps(done).encode(), shown))
    web.urlopen(web.Request(f"{api}/{request}/response", b"{}"))
"""
    (tmp_path / "boot").mkdir()
    assert run_code(tmp_path / "boot", bootstrap, "bootstrap").status == "Completed"


class Renewing(LocalEndpoints):
    """Every heartbeat replaces the token; the old one is refused from then on."""

    def heartbeat(self, request: HeartbeatRequest) -> HeartbeatAnswer:
        head, claims, _ = self.token.split(".")
        self.token = f"{head}.{claims}.{uuid4().hex}"
        return msgspec.structs.replace(super().heartbeat(request), capability_token=self.token)


def test_a_fresh_token_is_used_from_the_heartbeat_that_brings_it_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "main.py").write_text("def handler(event, context): ...")
    invocation = _invocation(pack(tmp_path), LocalTask(publishes=["large"]))

    @udf
    def handler(task: Task) -> None:
        assert task.beat()["capability_token"] == endpoints.token
        task.publish([{"a": 1}])
        task.beat()

    def work() -> Any:
        result = handler(msgspec.to_builtins(invocation), None)
        close()  # connections belong to a thread
        return result

    async def serve() -> None:
        listener = SandboxListener(endpoints.handle, 10, None)
        url = f"http://127.0.0.1:{await listener.open_loopback()}"
        for name in ("TRACE_TASK_URL", "TRACE_QUERY_URL", "TRACE_OBJECTS_URL"):
            monkeypatch.setenv(name, url)
        assert await asyncio.to_thread(work) == {"status": "Completed"}
        await listener.close()

    endpoints = Renewing(invocation, LocalDatasets({}, tmp_path))
    asyncio.run(serve())
    assert endpoints.calls.batches == {"large": [{"a": 1}]}
    assert endpoints.token != invocation.capability_token


@pytest.mark.parametrize(
    ("path", "body", "error"),
    [
        ("{request}/response", "not json", "the result is not JSON"),
        ("{other}/response", "{}", "the function broke the rules of the Runtime API"),
        ("next", None, "the function broke the rules of the Runtime API"),
        ("{request}/error", '{"errorType": "Mine", "errorMessage": "no luck"}', "no luck"),
    ],
)
def test_a_bootstrap_is_held_to_the_rules_of_the_runners_runtime_api(
    tmp_path: Path, path: str, body: str | None, error: str
) -> None:
    bootstrap = f"""#!/usr/bin/env python3
import os, time, urllib.request as web
api = f"http://{{os.environ['AWS_LAMBDA_RUNTIME_API']}}/2018-06-01/runtime/invocation"
with web.urlopen(f"{{api}}/next") as answer:
    request = answer.headers["Lambda-Runtime-Aws-Request-Id"]
path = {path!r}.format(request=request, other="0" + request)
web.urlopen(f"{{api}}/{{path}}", {body and body.encode()!r})
time.sleep(60)
"""
    result = run_code(tmp_path, bootstrap, "bootstrap")
    assert (result.status, (result.error or "").startswith(error)) == ("Failed", True)


def test_sql_over_files_is_the_platforms_own(tmp_path: Path) -> None:
    orders, names = tmp_path / "orders.jsonl", tmp_path / "names.csv"
    orders.write_text("".join(json.dumps({"id": str(n), "amount": n}) + "\n" for n in range(6)))
    names.write_text("id,name\n3,c\n4,d\n9,x\n")
    code = tmp_path / "code"
    code.mkdir()
    (code / "main.py").write_text(QUERIES)
    task = LocalTask(datasets={"orders": orders, "names": names}, publishes=["large"])
    result = run_locally(pack(code), task, shared_session())
    assert (result.status, result.error) == ("Completed", None)
    assert result.rows["large"] == [{"dedupe_key": "3", "amount": 3}, {"dedupe_key": "4", "amount": 4}]
    (code / "main.py").write_text(QUERIES.replace("JOIN names n USING (id)", ", elsewhere"))
    refused = run_locally(pack(code), task, shared_session())
    assert (refused.status, "400 invalid_sql" in (refused.error or "")) == ("Failed", True)


def test_invalid_input_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="invalid event or alert"):
        run_code(tmp_path, USES_EVERYTHING, scope={"start": -1})
    with pytest.raises(BadInput, match="unknown file type"):
        run_code(tmp_path, USES_EVERYTHING, datasets={"orders": tmp_path / "orders.xlsx"})
    with pytest.raises(BadInput, match="no such file"):
        run_code(tmp_path, USES_EVERYTHING, datasets={"orders": tmp_path / "orders.csv"})
