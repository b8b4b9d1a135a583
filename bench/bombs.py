"""Sends bombs to the Query service without a pause, until its input ends: `bench.query --bombs` starts it.

It is a process of its own because the answers of bombs are large: whoever reads them has work with them.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import httpx

from tests.support.identity.service_tokens import as_service
from tracelake.runtime.http_client import AsyncClient

BOMBER: Final = "bomber"
AT_ONCE: Final = 4
BOMBS: Final = {
    "time": "SELECT count(*) AS n FROM events a CROSS JOIN events b WHERE a.text || b.text <> a.text",
    "texts": "SELECT repeat('x', 4000000) AS s FROM events WHERE number < 400 ORDER BY number",
    "rows": "SELECT a.text AS t, b.text AS u FROM events a CROSS JOIN events b",
    "aggregate": "SELECT max(repeat(a.text, 10000)) AS m FROM events a JOIN events b ON a.kind = b.kind",
    "distinct": "SELECT count(DISTINCT a.text || b.text) AS n FROM events a JOIN events b ON a.kind = b.kind",
}
"""By what they take. Hours of work, more memory than there is, and more rows: none can be refused by its text."""
READY: Final = "ready"


@asynccontextmanager
async def throwing(
    service: httpx.AsyncClient, ca: Path, before: Counter[str], kinds: Sequence[str]
) -> AsyncIterator[Counter[str]]:
    """Bombs are sent while this is open. Yields a counter of how they ended, by status, which adds those `before`."""
    ended, pipe = Counter(before), asyncio.subprocess.PIPE
    argv = [sys.executable, "-m", "bench.bombs", str(service.base_url), str(ca), str(before.total()), *kinds]
    # A session of its own: a kernel that gives each session its share of the cores would count it as the service.
    process = await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe, start_new_session=True)
    assert process.stdout is not None
    try:
        assert (await process.stdout.readline()).decode().strip() == READY
        yield ended
    finally:
        out, _ = await process.communicate(b"")
        ended.update(json.loads(out))


async def main(url: str, ca: str, first: str, *kinds: str) -> None:
    bombs = [BOMBS[kind] for kind in kinds]
    ended, over, context = Counter[str](), asyncio.Event(), ssl.create_default_context(cafile=ca)
    async with AsyncClient(base_url=url, headers=as_service("gateway"), verify=context, timeout=120) as service:
        tasks = [asyncio.create_task(throw(service, bombs, over, ended, int(first) + at)) for at in range(AT_ONCE)]
        print(READY, flush=True)
        await asyncio.to_thread(sys.stdin.read)
        over.set()
        await asyncio.gather(*tasks)
    print(json.dumps(ended))


async def throw(
    service: httpx.AsyncClient, bombs: Sequence[str], over: asyncio.Event, ended: Counter[str], number: int
) -> None:
    """One bomb after the other; how each ends is counted and is no matter."""
    while not over.is_set():
        body = {"sql": bombs[number % len(bombs)], "timeout_seconds": 1.0}
        answer = await service.post("/v1/query", json=body, headers={"X-Trace-User": BOMBER})
        ended[str(answer.status_code)] += 1
        number += 1


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
