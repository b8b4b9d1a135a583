"""The Query service as a process of its own, and the processes below it."""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx
import psutil
from pydantic import SecretStr

from tests.support.child_process import trace_process
from tests.support.identity.service_tokens import TOKENS, as_gateway, as_service
from tests.support.systems.processes import is_ready
from tests.support.systems.query import QuerySystem
from tests.support.tls import https
from tests.support.waiting import SECONDS, until
from tracelake.lite.network_ports import free_port
from tracelake.settings import EndpointSettings, IdentitySettings, ObjectSettings

COUNT = "SELECT count(*) AS n FROM orders"


@asynccontextmanager
async def a_service(
    system: QuerySystem,
    home: Path,
    stuck_seconds: float = 1.0,
    engine: str = "spark",
    *,
    module: str = "tracelake",
    **query: float | str,
) -> AsyncIterator[tuple[subprocess.Popen[bytes], httpx.AsyncClient]]:
    """`module`: what is run in place of `trace`."""
    port = free_port()
    limits = {"internal_port": port, "stuck_seconds": stuck_seconds, "engine": engine, **query}
    settings = system.settings.model_copy(
        update={
            "home": home,
            "identity": IdentitySettings(service_token=SecretStr(TOKENS["query"])),
            "objects": ObjectSettings(folder=system.operators.walk.control.objects.root),  # type: ignore[attr-defined]
            "endpoints": EndpointSettings(dispatcher_internal=system.operators.walk.listeners["dispatcher_internal"]),
            "query": system.settings.query.model_copy(update=limits),
            "spark": system.settings.spark.model_copy(update={"quick_compiler": True}),
        }
    )
    headers = as_gateway("reader", "query")
    url, log = f"https://127.0.0.1:{port}", home.parent / f"{home.name}.log"
    with trace_process("query", settings, log, module) as process:
        async with https(url, system.operators.walk.ca, headers=headers) as listener:
            await until_ready(process, listener, log)
            yield process, listener


async def until_ready(process: subprocess.Popen[bytes], listener: httpx.AsyncClient, log: Path) -> None:
    async def ready() -> bool:
        assert process.poll() is None, log.read_text()  # noqa: ASYNC240 - it has failed
        return await is_ready(listener)

    await until(ready, "the Query service is ready", every=0.1, ignoring=(httpx.TransportError,))


async def answered(listener: httpx.AsyncClient, sql: str) -> list[list[int]]:
    """Retry while the error is retryable."""
    async with asyncio.timeout(SECONDS):
        while True:
            answer = await listener.post("/v1/query", json={"sql": sql})
            if answer.is_success:
                found: list[list[int]] = answer.json()["rows"]
                return found
            assert answer.json()["error"]["retryable"], answer.text
            await asyncio.sleep(0.2)


def family(leader: int) -> list[int]:
    """The processes in the session of a process that started one."""
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
    """Those whose command has this word."""
    found = []
    for pid in family(leader):
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:4]
            if word in {Path(word).name for word in words}:
                found.append(pid)
    return found


def sails(leader: int) -> list[int]:
    """The processes that run queries in the sandboxes of a service, each of which is a session of its own."""
    found = []
    for child in psutil.Process(leader).children(recursive=True):
        with suppress(psutil.Error):  # it has just ended
            found += [child.pid] if "pysail" in child.cmdline() else []
    return found


async def running_queries(listener: httpx.AsyncClient) -> float:
    return await gauge(listener, "trace_queries_in_progress", "running")


async def gauge(listener: httpx.AsyncClient, name: str, state: str) -> float:
    text = (await listener.get("/metrics", headers=as_service("monitor"))).text
    return float(re.findall(rf'^{name}{{state="{state}"}} (\S+)$', text, re.MULTILINE)[0])
