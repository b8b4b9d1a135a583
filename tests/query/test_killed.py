"""The Query service as a process of its own: it outlives its Spark, and a kill -9 leaves nothing of it behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx
import pytest

from tests.query.house import ROWS, House
from tests.walk.walking import TOKEN
from trace_platform.domain.objects import Folder
from trace_platform.lite.plan import child_environment
from trace_platform.lite.ports import free_port
from trace_platform.settings import EndpointSettings, ObjectSettings, to_document

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]
COUNT = "SELECT count(*) AS n FROM orders"
MANY = "SELECT a.value, b.value AS v FROM " + ", ".join(f"orders {name}" for name in "abcdefg")  # noqa: S608 - a query of a test
BOMB = """
    WITH a AS (SELECT repeat(cast(value AS string), 10000) AS s FROM orders),
         b AS (SELECT repeat(s, 10000) AS s FROM a), c AS (SELECT concat(s, s, s, s, s, s, s, s) AS s FROM b)
    SELECT max(length(concat(s, s, s, s, s, s, s, s))) AS n FROM c
"""


@asynccontextmanager
async def a_service(house: House, home: Path) -> AsyncIterator[tuple[subprocess.Popen[bytes], httpx.AsyncClient]]:
    port = free_port()
    settings = house.settings.model_copy(
        update={
            "home": home,
            "objects": ObjectSettings(folder=house.rig.walk.control.objects.root),  # type: ignore[attr-defined]
            "endpoints": EndpointSettings(dispatcher_internal=house.rig.walk.doors["dispatcher_internal"]),
            "query": house.settings.query.model_copy(update={"internal_port": port}),
        }
    )
    process = subprocess.Popen(  # noqa: ASYNC220 - it returns at once
        [sys.executable, "-m", "trace_platform", "query", "--settings", "-"],
        stdin=subprocess.PIPE,
        env=child_environment(os.environ),
        start_new_session=True,
    )
    assert process.stdin is not None
    process.stdin.write(to_document(settings).encode())
    process.stdin.close()
    headers = {"X-Trace-Worker-Token": TOKEN, "X-Trace-User": "reader"}
    url = f"https://127.0.0.1:{port}"
    try:
        async with httpx.AsyncClient(base_url=url, verify=house.context, headers=headers, timeout=300) as door:
            await until_ready(process, door)
            yield process, door
    finally:
        process.kill()
        process.wait()


async def until_ready(process: subprocess.Popen[bytes], door: httpx.AsyncClient) -> None:
    async with asyncio.timeout(120):
        while process.poll() is None:
            try:
                if (await door.get("/readyz")).is_success:
                    return
            except httpx.TransportError:
                await asyncio.sleep(0.1)
    raise AssertionError(f"it ended with {process.returncode}")


async def answered(door: httpx.AsyncClient, sql: str) -> list[list[int]]:
    """Asked again for as long as it is told that this may help."""
    async with asyncio.timeout(240):
        while True:
            answer = await door.post("/v1/query", json={"sql": sql})
            if answer.is_success:
                found: list[list[int]] = answer.json()["rows"]
                return found
            assert answer.json()["error"]["retryable"], answer.text
            await asyncio.sleep(0.2)


def family(leader: int) -> list[int]:
    """Who lives in the session of a process that began one."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == leader and fields[0] != "Z":
                found.append(int(entry.name))
    return found


def members(leader: int, word: str) -> list[int]:
    """Those of them that were started with this word."""
    found = []
    for pid in family(leader):
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:4]
            if word in {Path(one).name for one in words}:
                found.append(pid)
    return found


async def test_it_outlives_its_spark_and_a_kill_leaves_nothing_behind(house: House, tmp_path: Path) -> None:
    audited = len(await house.audit())
    async with a_service(house, tmp_path / "home") as (process, door):
        assert await answered(door, COUNT) == [[ROWS]]
        (java,) = members(process.pid, "java")
        bomb = await door.post("/v1/query", json={"sql": BOMB})
        assert bomb.status_code in {422, 503}, bomb.text
        if members(process.pid, "java") == [java]:  # the bomb did not cost it its life
            os.kill(java, signal.SIGKILL)
        assert await answered(door, COUNT) == [[ROWS]], "the limit holds, Spark is started again, the service goes on"
        export = asyncio.create_task(door.post("/v1/query", json={"sql": MANY, "export": {}}))
        async with asyncio.timeout(120):
            while not members(process.pid, "pyspark.daemon"):  # noqa: ASYNC110 - Spark's work is waited for
                await asyncio.sleep(0.05)
        process.kill()
        with pytest.raises(httpx.TransportError):
            await export
        async with asyncio.timeout(120):
            while family(process.pid):  # noqa: ASYNC110 - the kernel's and Java's work is waited for
                await asyncio.sleep(0.05)
    folder = Folder.parse(f"s3://trace/exports/{house.rig.walk.org.id}/")
    found = {str(one.name).split("/")[5] for one in house.rig.walk.control.objects.objects(folder)}
    whole = {
        str(one.name).split("/")[5]
        for one in house.rig.walk.control.objects.objects(folder)
        if one.name.name == "_SUCCESS"
    }
    assert found == whole, "no export is half visible"
    held = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'trace query' AND state <> 'idle'"
    assert not await house.pool.fetchval(held)
    async with a_service(house, tmp_path / "home"):  # what was asked before the kill is told by the next
        await house.rig.until("SELECT count(*) >= $1 FROM query_audit", audited + 3)
