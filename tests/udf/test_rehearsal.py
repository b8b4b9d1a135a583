"""`trace udf test`: what a bundle would do is shown, by running it; nothing leaves this machine."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from tests.spark_session import shared_session
from trace_udf import Task, udf
from trace_udf.connections import close
from tracelake.errors import BadInput, InvalidRequest
from tracelake.lite.local_run.endpoints import StandIns
from tracelake.lite.local_run.rows import Snapshot
from tracelake.lite.local_run.run import Played, Rehearsal, _invocation, _served, rehearse
from tracelake.udf.pack import pack
from tracelake.wire.task_messages import HeartbeatAnswer, HeartbeatRequest

ASKS = """
from trace_udf import udf

@udf
def handler(task):
    rows = task.query("SELECT o.id, o.amount FROM orders o JOIN names n USING (id) WHERE amount > 2 ORDER BY 1")
    task.publish(({"dedupe_key": row["id"], "amount": row["amount"]} for row in rows), key="dedupe_key")
"""
DOES = """
import sys
from trace_udf import udf

@udf
def handler(task):
    print("to stdout")
    task.log.warning("limit is %s", task.config["limit"])
    task.publish([{"dedupe_key": "a"}], dataset="large")
    task.publish([{"dedupe_key": "a"}], dataset="large")
    task.alert("big", dedupe_key="x", event_time="2026-01-01T00:00:00Z")
    task.emit("told", start=task.scope["start"], end=task.scope["end"])
    task.progress(1, 2, "half")
    task.state = {"seen": task.state["seen"] + 1}
    try:
        import pyarrow
    except ImportError:
        task.log.info("only the bundle's own")
"""


def played(folder: Path, code: str, name: str = "main.py", **asked: Any) -> Played:
    made = folder / "code"
    made.mkdir(exist_ok=True)
    (made / name).write_text(code)
    (made / name).chmod(0o755)
    return rehearse(pack(made), Rehearsal(**asked))


def test_everything_a_function_does_is_shown(tmp_path: Path) -> None:
    found = played(
        tmp_path,
        DOES,
        publishes=["large", "alert_events"],
        tells=["told"],
        scope={"start": 0, "end": 9},
        config={"limit": 5},
        state={"seen": 1},
        alerts=[{"name": "big", "severity": "critical"}],
    )
    assert (found.status, found.error, found.state, found.progress) == (
        "Completed",
        None,
        {"seen": 2},
        {"done": 1, "total": 2, "message": "half"},
    )
    assert found.rows["large"] == [{"dedupe_key": "a"}]  # the same batch twice is one
    assert [(row["dedupe_key"], row["severity"]) for row in found.rows["alert_events"]] == [("x", "critical")]
    assert found.events == [{"output": "told", "start": 0, "end": 9}]
    for line in ("to stdout", "WARNING limit is 5", "INFO only the bundle's own"):
        assert line in found.log.splitlines()


def test_a_function_that_fails_says_why(tmp_path: Path) -> None:
    failing = "from trace_udf import udf\n\n@udf\ndef handler(task):\n    raise ValueError('no luck')\n"
    found = played(tmp_path, failing)
    assert (found.status, (found.error or "").splitlines()[0]) == ("Failed", "ValueError: no luck")
    found = played(tmp_path, "def handler(event, context): return 1\n")
    assert (found.status, found.error) == ("Failed", "it ended without having completed")
    found = played(tmp_path, "raise SystemExit(3)\n")
    assert (found.status, found.error) == ("Failed", "it exited with 3")
    found = played(tmp_path, "import time\ndef handler(event, context): time.sleep(600)\n", seconds=1.0)
    assert (found.status, found.error) == ("Failed", "it ran longer than 1 s, and was ended")


def test_node_and_any_executable_run_too(tmp_path: Path) -> None:
    script = """
    const { udf } = require("./trace_udf");
    exports.handler = udf(async (task) => { await task.publish([{ k: 1n, b: Buffer.from([1, 255]) }]); });
    """
    (tmp_path / "node").mkdir()
    found = played(tmp_path / "node", script, "main.js", publishes=["large"])
    assert (found.status, found.rows) == ("Completed", {"large": [{"k": "1", "b": "0x01ff"}]})
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
    assert played(tmp_path / "boot", bootstrap, "bootstrap").status == "Completed"


class Renewing(StandIns):
    """Doors at which a token holds until the next heartbeat."""

    def heartbeat(self, asked: HeartbeatRequest) -> HeartbeatAnswer:
        head, claims, _ = self.token.split(".")
        self.token = f"{head}.{claims}.{uuid4().hex}"
        return msgspec.structs.replace(super().heartbeat(asked), capability_token=self.token)


def test_a_fresh_token_is_used_from_the_heartbeat_that_brings_it_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "main.py").write_text("def handler(event, context): ...")
    invocation = _invocation(pack(tmp_path), Rehearsal(publishes=["large"]))
    listeners = Renewing(invocation, Snapshot({}, tmp_path))
    with _served(listeners):
        for name in ("TRACE_TASK_URL", "TRACE_QUERY_URL", "TRACE_OBJECTS_URL"):
            monkeypatch.setenv(name, f"http://{listeners.address}")

        @udf
        def handler(task: Task) -> None:
            assert task.beat()["capability_token"] == listeners.token
            task.publish([{"a": 1}])
            task.beat()

        assert handler(msgspec.to_builtins(invocation), None) == {"status": "Completed"}
        close()
    assert listeners.heard.batches == {"large": [{"a": 1}]}
    assert listeners.token != invocation.capability_token


def test_sql_over_files_is_the_platforms_own(tmp_path: Path) -> None:
    orders, names = tmp_path / "orders.jsonl", tmp_path / "names.csv"
    orders.write_text("".join(json.dumps({"id": str(n), "amount": n}) + "\n" for n in range(6)))
    names.write_text("id,name\n3,c\n4,d\n9,x\n")
    code = tmp_path / "code"
    code.mkdir()
    (code / "main.py").write_text(ASKS)
    asked = Rehearsal(datasets={"orders": orders, "names": names}, publishes=["large"])
    found = rehearse(pack(code), asked, shared_session())
    assert (found.status, found.error) == ("Completed", None)
    assert found.rows["large"] == [{"dedupe_key": "3", "amount": 3}, {"dedupe_key": "4", "amount": 4}]
    (code / "main.py").write_text(ASKS.replace("JOIN names n USING (id)", ", elsewhere"))
    refused = rehearse(pack(code), asked, shared_session())
    assert (refused.status, "400 invalid_sql" in (refused.error or "")) == ("Failed", True)


def test_what_cannot_be_rehearsed_is_said_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="the event cannot be"):
        played(tmp_path, DOES, scope={"start": -1})
    with pytest.raises(BadInput, match="not known by its ending"):
        played(tmp_path, DOES, datasets={"orders": tmp_path / "orders.xlsx"})
    with pytest.raises(BadInput, match="no such file"):
        played(tmp_path, DOES, datasets={"orders": tmp_path / "orders.csv"})
