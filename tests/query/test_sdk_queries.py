"""A function queries through the SDK, from its own process, over TLS, and gets rows in native types."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import ROOT
from tests.support.systems.query import FOREVER, QuerySystem
from tests.support.systems.runner import invocation, settings_for
from tests.support.systems.udf import bundle
from tests.support.udf.lambda_functions import NODE, PYTHON, event_of
from tests.support.waiting import SECONDS
from tracelake.sandbox.bubblewrap import choose_isolation
from tracelake.settings import Settings
from tracelake.udf.object_stores import Stores
from tracelake.udf.process import running
from tracelake.udf.unpack import unpack
from tracelake.wire.task.lifecycle import Claimed, UdfRef
from tracelake.wiring import session_objects

pytestmark = pytest.mark.anyio
# Each saves another state: one that is the job's already is not sent again.
CODE = """
from trace_udf import Refused, udf

@udf
def handler(task):
    rows = task.query("SELECT count(*) AS n, max(block_number) AS top FROM hide")
    two = task.query("SELECT block_number FROM hide ORDER BY 1", limit=2)
    refused = ""
    try:
        task.query("SELECT * FROM orders")
    except Refused as wrong:
        refused = str(wrong)
    task.state = {"rows": rows, "two": two, "refused": refused, "language": "python"}
"""
SCRIPT = """
const { udf } = require(%s);
exports.handler = udf(async (task) => {
  const rows = await task.query("SELECT count(*) AS n, max(block_number) AS top FROM hide");
  const two = await task.query("SELECT block_number FROM hide ORDER BY 1", { limit: 2 });
  const refused = await task.query("SELECT * FROM orders").catch((wrong) => wrong.message);
  task.state = { rows, two, refused, language: "node" };
});
"""


SLOW_CODE = """
from trace_udf import udf

@udf
def handler(task):
    task.query("{sql}", timeout_seconds=1)
"""
SLOW_SCRIPT = """
const {{ udf }} = require(%s);
exports.handler = udf(async (task) => {{ await task.query("{sql}", {{ timeout_seconds: 1 }}); }});
"""


@pytest.mark.parametrize("language", ["python", "node"])
async def test_a_query_that_took_too_long_fails_the_attempt_and_not_the_task(
    system: QuerySystem, language: str, tmp_path: Path
) -> None:
    await system.add("feed")
    claimed = await system.claimed()
    sql = FOREVER.replace("orders", "hide")
    code, script = SLOW_CODE.format(sql=sql), SLOW_SCRIPT.format(sql=sql)
    ended = await query_result(system, claimed, language, tmp_path, code=code, script=script)
    assert (ended["status"], ended["retryable"]) == ("Failed", True), ended
    assert "(504 query_timeout)" in ended["error_message"]
    later = (await system.ask("test|acme", "SELECT count(*) FROM orders")).json()
    await system.audited(later["query_id"])  # rows are sent in the order of the queries
    rows = [row for row in await system.audit() if row["task_id"] == claimed.task.task_id]
    assert [row["code"] for row in rows] == ["query_timeout"], "it is not asked again by itself, for as long again"


@pytest.mark.parametrize("language", ["python", "node"])
async def test_a_function_queries_its_inputs_and_gets_refusals(
    system: QuerySystem, language: str, tmp_path: Path
) -> None:
    await system.add("feed")
    claimed = await system.claimed()
    found = await query_result(system, claimed, language, tmp_path)
    assert found["state"]["language"] == language
    assert found["state"]["rows"] == [{"n": 15, "top": 14}]
    assert found["state"]["two"] == [{"block_number": 0}, {"block_number": 1}]
    assert found["state"]["refused"].startswith("POST /v1/task/query was refused (400 invalid_sql): there is no table")


async def test_sandboxed_code_queries_the_service_and_gets_refusals(system: QuerySystem, tmp_path: Path) -> None:
    await system.add("feed")
    claimed = await system.claimed()
    walk, base = system.operators.walk, settings_for(system.operators.walk, tmp_path)
    listeners = base.endpoints.model_copy(update={"query_task": str(system.task_api.base_url).rstrip("/")})
    settings = base.model_copy(update={"endpoints": listeners})
    udf = on_the_runner(settings, bundle(CODE.replace('"language": "python"', '"in": "a sandbox"')))
    stores = Stores(settings, walk.control.objects, walk.tasks, session_objects)
    async with running(settings, choose_isolation(), walk.dispatcher, walk.tasks, stores) as functions:
        ended = await functions.run(invocation(claimed, udf, completes="wrapper"))
    assert isinstance(ended, bytes), ended
    state = json.loads(ended)["state"]
    assert (state["rows"], state["two"]) == ([{"n": 15, "top": 14}], [{"block_number": 0}, {"block_number": 1}])
    assert state["refused"].startswith("POST /v1/task/query was refused (400 invalid_sql): there is no table")


def on_the_runner(settings: Settings, archive: bytes) -> UdfRef:
    """As if it had been fetched."""
    sha256 = hashlib.sha256(archive).hexdigest()
    place = settings.home / "cache" / "udf" / sha256
    place.parent.mkdir(parents=True)
    unpack(archive, place)
    return UdfRef(
        bundle="test",
        sha256=sha256,
        kind="python",
        handler="main.handler",
        size_bytes=len(archive),
        url="http://nowhere",
    )


async def query_result(
    system: QuerySystem, claimed: Claimed, language: str, folder: Path, *, code: str = CODE, script: str = SCRIPT
) -> Any:
    (folder / "main.py").write_text(code)
    (folder / "main.js").write_text(script % json.dumps(str(ROOT / "trace_udf" / "node" / "trace_udf.js")))
    run = [sys.executable, "-c", PYTHON] if language == "python" else ["node", "-e", NODE]
    child = await asyncio.create_subprocess_exec(
        *run,
        str(folder),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "TRACE_TASK_URL": system.operators.walk.listeners["dispatcher_task"],
            "TRACE_QUERY_URL": str(system.task_api.base_url),
            "SSL_CERT_FILE": str(system.operators.walk.ca),
            "NODE_EXTRA_CA_CERTS": str(system.operators.walk.ca),
        },
    )
    async with asyncio.timeout(SECONDS):
        out, _ = await child.communicate(event_of(claimed))
    assert child.returncode == 0
    return json.loads(out)
