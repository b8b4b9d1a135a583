"""The Query service as a process whose Spark is killed or must be ended: callers still get their answers. 60 s."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.support.systems.query import ROWS, QuerySystem
from tests.support.systems.query_process import COUNT, a_service, answered, members
from tests.support.systems.walk import TOKEN
from tests.support.waiting import SECONDS, until
from tracelake.settings import QuerySettings

pytestmark = pytest.mark.anyio
LIMIT = 5
CORES = 2
"""Cores that one query may use."""
JAVA_ITSELF = 6
BEGUN = 2
"""More seconds of work than planning takes."""
SLOW = "SELECT sum(a.value + b.value) AS n FROM " + ", ".join(f"orders {name}" for name in "abcdef")  # noqa: S608 - a query of a test
"""64 million rows in nested loops."""
TOTAL = sum(range(0, 10 * ROWS, 10)) * 2 * ROWS**5
TEN = "stack(10, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9)"
LOOPS = "SELECT sum(t0.value + t9.value) AS n FROM " + ", ".join(f"orders t{n}" for n in range(12))  # noqa: S608
MANY = "SELECT a.value FROM orders a, orders b, orders c, orders d"
GENERATED = f"SELECT count(*) AS n FROM ({MANY}) o " + " ".join(f"LATERAL VIEW {TEN} g{n} AS c{n}" for n in range(6))  # noqa: S608

Service = tuple[subprocess.Popen[bytes], httpx.AsyncClient]


@pytest.fixture(scope="module")
async def service(system: QuerySystem, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Service]:
    """With time limits that no query reaches on a busy machine, unless it gives its own."""
    home, usual = tmp_path_factory.mktemp("service"), QuerySettings().stuck_seconds
    async with a_service(system, home, usual, timeout_seconds=SECONDS, wait_seconds=SECONDS) as running:
        yield running


async def test_queries_whose_spark_was_killed_are_run_once_more_one_at_a_time(service: Service) -> None:
    process, listener = service
    await answered(listener, COUNT)
    requests = [asyncio.create_task(listener.post("/v1/query", json={"sql": SLOW})) for _ in range(2)]
    first = await java_of(process)
    await until_running(listener, 2)
    os.kill(first, signal.SIGKILL)
    await java_of(process, other_than=first)
    await until_running(listener, 1)
    os.kill(await java_of(process, other_than=first), signal.SIGKILL)
    answers = sorted([await request for request in requests], key=lambda answer: answer.status_code)
    assert [answer.status_code for answer in answers] == [200, 503], [answer.text for answer in answers]
    assert answers[0].json()["rows"] == [[TOTAL]], "it died with the other, and not with it again"
    refusal = answers[1].json()["error"]
    assert (refusal["code"], refusal["retryable"]) == ("spark_lost", True), "twice under it: no third time"


@pytest.mark.parametrize(("sql", "hangs_up"), [(LOOPS, False), (GENERATED, True)], ids=["loops", "generators"])
async def test_a_query_that_no_interrupt_ends_uses_little_more_than_its_time_limit(
    service: Service, sql: str, hangs_up: bool
) -> None:
    process, listener = service
    await answered(listener, COUNT)
    java = await java_of(process)
    before = processor_seconds(java) or 0
    spent, allowed, limit = before, JAVA_ITSELF, LIMIT
    async with asyncio.timeout(SECONDS):
        while processor_seconds(java) is not None:
            began = spent
            request = asyncio.create_task(listener.post("/v1/query", json={"sql": sql, "timeout_seconds": limit}))
            while (now := processor_seconds(java)) is not None and (
                not request.done() or await running_queries(listener)
            ):
                spent = now
                if hangs_up and spent - began > BEGUN:
                    request.cancel()
                await asyncio.sleep(0.05)
            await asyncio.wait({request})
            if not request.cancelled():
                assert error_of(request.result()) == (504, "query_timeout", True)
            allowed += CORES * (limit + 2)
            limit *= 2  # the time was over before its tasks had begun: on a busy machine planning takes longer
    # Processor time, not wall time, which depends on the load of the machine.
    assert spent - before < allowed
    assert await answered(listener, COUNT) == [[ROWS]]


async def java_of(process: subprocess.Popen[bytes], other_than: int = 0) -> int:
    async with asyncio.timeout(SECONDS):
        while True:
            for java in members(process.pid, "java"):
                if java != other_than:
                    return java
            await asyncio.sleep(0.05)


async def until_running(listener: httpx.AsyncClient, queries: int) -> None:
    """Wait until this many queries with a slot run in Spark, which has prepared sessions."""

    async def running() -> bool:
        return await running_queries(listener) == queries and await gauge(listener, "trace_query_sessions", "fresh") > 0

    await until(running, f"{queries} queries run", every=0.05)


async def running_queries(listener: httpx.AsyncClient) -> float:
    return await gauge(listener, "trace_queries_in_progress", "running")


async def gauge(listener: httpx.AsyncClient, name: str, state: str) -> float:
    text = (await listener.get("/metrics", headers={"authorization": f"Bearer {TOKEN}"})).text
    return float(re.findall(rf'^{name}{{state="{state}"}} (\S+)$', text, re.MULTILINE)[0])


def processor_seconds(pid: int) -> float | None:
    """None: it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def error_of(answer: httpx.Response) -> tuple[int, str, bool]:
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["retryable"]
