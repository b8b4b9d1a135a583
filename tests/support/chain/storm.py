"""A story of a chain and the workers that follow it: blocks, reorgs, restarts, kills; and what must be true at its end.

Workers are processes of their own, forked by the fork_server of the fault tests, without a Spark session: following and
compacting need none (work that Spark would give to its executors is then done by the worker itself), and so a worker
is there within milliseconds and can be killed often.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

import asyncpg
import psycopg

from tests.support.chain.devchain import Devchain
from tests.support.identity.service_tokens import TOKENS
from tests.support.systems.chain import ChainSystem, rows_of, truth
from tests.support.systems.processes import ELAPSED, Child, ForkServer
from tests.support.systems.walk import walking
from tests.support.waiting import until
from tracelake.wire.task.markers import MARKER

FOLLOWED = "SELECT EXISTS (SELECT FROM trace_meta.followed_blocks)"
NEWEST = "SELECT number, hash FROM trace_meta.hot_blocks WHERE dataset_version = %s ORDER BY number DESC LIMIT 1"
TABLES = ("blocks", "transactions", "logs")
SIZE, FINALITY = 20, 16
START = 110
"""The chain's height when a story begins: reorgs may be a hundred blocks deep."""

DAG = """
name: live
defaults: {runtime: ecs_platform, max_attempts: 100, retry: {backoff: 1s, max_backoff: 1s}}
jobs:
  - name: follow
    operator: block_follower
    source: {kind: always_on}
    config: {rpc_pool: dev, poll_seconds: 0.1, batch: 60, start_block: START, emit_strategy: EMIT}
    outputs: [blocks, transactions, logs, final]
    heartbeat_interval_seconds: 1s
  - name: gather
    operator: range_aggregator
    runtime: dispatcher
    config: {size: 20}
    inputs: [{from: {job: follow, output: final}}]
  - name: compact
    operator: parquet_compact
    config: {grace_seconds: 0, chunk: 11}
    inputs:
      - {from: {job: gather}}
      - {from: {job: follow, output: blocks}, trigger: false}
      - {from: {job: follow, output: transactions}, trigger: false}
      - {from: {job: follow, output: logs}, trigger: false}
    outputs: [blocks, transactions, logs]
"""


@dataclass(frozen=True)
class Follows:
    """The settings of a story's follower."""

    start: int | Literal["latest"] = 0
    emit: Literal["per_block", "per_range"] = "per_range"
    reset: bool = False

    @property
    def first(self) -> int:
        """Its first block, whatever comes: a chain whose end is followed stands still until that was seen."""
        return START if self.start == "latest" else self.start

    @property
    def dag(self) -> str:
        text = DAG.replace("START", str(self.start)).replace("EMIT", self.emit)
        return text.replace("source: {", "bootstrap: {reset_outputs: true}\n    source: {") if self.reset else text


@dataclass(frozen=True)
class Mine:
    blocks: int


@dataclass(frozen=True)
class Reorg:
    """`more`: how much higher the new branch is than the old one was; 0 changes only hashes, less is shorter."""

    depth: int
    more: int = 1
    times: int = 1


@dataclass(frozen=True)
class Back:
    """To a fork that was left earlier, which then goes on."""

    branch: int


@dataclass(frozen=True)
class Kill:
    """SIGKILL some milliseconds after it has begun to work; the next worker dies at `point`, the `nth` time there."""

    point: str | None = None
    nth: int = 1
    after_ms: int = 0


@dataclass(frozen=True)
class Restart:
    """In good order."""


@dataclass(frozen=True)
class Wait:
    """Until the tip has been reached, or until also everything that follows from it has been done."""

    settled: bool = False


Step = Mine | Reorg | Back | Kill | Restart | Wait


@dataclass
class Storm:
    system: ChainSystem
    fork_server: ForkServer
    folder: Path
    document: dict[str, Any]
    queue: asyncpg.Pool
    version: UUID
    first_branch: int
    """Of those that this story has made."""
    data: psycopg.Connection[Any]
    follows: Follows
    workers: list[Child] = field(default_factory=list)

    async def play(self, story: Sequence[Step]) -> None:
        self.start()
        if self.follows.start == "latest":
            await self.until(self.has_begun)
        for step in story:
            await self.happens(step)
        await self.ends()

    async def happens(self, step: Step) -> None:
        chain = self.system.devchain
        match step:
            case Mine(blocks):
                chain.mine(blocks)
            case Reorg(depth, more, times):
                for _ in range(times):
                    deep = min(depth, chain.describe()["head"])
                    chain.reorg(deep, max(1, deep + more))
            case Back(branch):
                left = [0, *range(self.first_branch, len(chain.describe()["branches"]))]
                chain.switch(left[branch % len(left)])
                chain.mine(1)
            case Kill(point, nth, after_ms):
                await self.until(self.is_at_work)
                await asyncio.sleep(after_ms / 1000)  # not for anything: any moment will do
                await self.workers[-1].kill()
                await self.elapse()
                self.start(point, nth)
            case Restart():
                await self.workers[-1].kill(signal.SIGTERM)
                await self.elapse()
                self.start()
            case Wait(settled):
                await self.until(self.is_settled if settled else self.has_followed)

    async def ends(self) -> None:
        """Whatever became of the chain, and whoever is armed: it grows, and then all is as it is."""
        await self.happens(Restart())
        chain = self.system.devchain
        chain.mine(max(40, START + 80 - int(chain.describe()["head"])))
        await self.until(self.has_followed)
        await self.until(self.is_equal)
        assert await self.system.failures() == []

    def start(self, point: str | None = None, nth: int = 1, how: str = "kill") -> Child:
        document = {**self.document, "faults": {"point": point, "nth": nth, "how": how}}
        log = self.folder / f"worker-{len(self.workers)}.log"
        self.workers.append(self.fork_server.start("worker", document, log, faults=None, hold=None, clock=None))
        return self.workers[-1]

    async def until(self, true: Callable[[], Awaitable[bool]]) -> None:
        """A worker that has died, at the point for which it was armed, is followed by one that is not."""

        async def reached() -> bool:
            if await true():
                return True
            if not self.workers[-1].alive():
                await self.elapse()
                self.start()
            await self.hurry()
            return False

        try:
            await until(reached, true.__name__, every=0.05)
        except TimeoutError as late:
            raise AssertionError(self.workers[-1].said()[-3000:]) from late

    async def is_at_work(self) -> bool:
        return bool(
            await self.system.walk.control.pool.fetchval("SELECT EXISTS (SELECT FROM tasks WHERE status = 'Running')")
        )

    async def has_begun(self) -> bool:
        row = self.data.execute(FOLLOWED).fetchone()
        return row is not None and bool(row[0])

    async def has_followed(self) -> bool:
        """As far as there is anything to follow: a chain may be cut back below where it was begun."""
        chain = self.system.devchain.describe()
        if chain["head"] < self.follows.first:
            return True
        row = self.data.execute(NEWEST, (self.version,)).fetchone()
        return row is not None and (row[0], "0x" + bytes(row[1]).hex()) == (chain["head"], chain["head_hash"])

    async def is_settled(self) -> bool:
        return await self.has_followed() and not await self.system.moving()

    async def is_equal(self) -> bool:
        """Hot and cold rows of every table, read apart and combined by the rule, are the chain's rows.

        And cold alone is, where the chain is final: what a deep reorg made untrue was compacted again.
        """
        if not await self.is_settled():
            return False
        head = int(self.system.devchain.describe()["head"])
        return all([await self.table_is_equal(output, head) for output in range(len(TABLES))])

    async def hot_and_cold_are_equal(self) -> bool:
        """Hot and cold put together; how much of it is cold does not matter."""
        if not await self.is_settled():
            return False
        rows = {
            table: truth(self.system.devchain, table, 0, int(self.system.devchain.describe()["head"]))
            for table in TABLES
        }
        actual = [
            await self.system.current_rows("live", "follow", "compact", n, table) for n, table in enumerate(TABLES)
        ]
        return actual == list(rows.values())

    async def table_is_equal(self, output: int, head: int) -> bool:
        table = TABLES[output]
        rows = truth(self.system.devchain, table, self.follows.first, head)
        if await self.system.current_rows("live", "follow", "compact", output, table) != rows:
            return False
        first, final = -(-self.follows.first // SIZE) * SIZE, (head - FINALITY + 1) // SIZE * SIZE
        cold = await self.system.cold("live", "compact", output)
        found = [row for row in rows_of(cold, table) if row["block_number"] < final] if cold else []
        return found == [row for row in rows if first <= row["block_number"] < final]

    async def garbage(self) -> set[str]:
        """Objects that no commit names; markers stay where something counts."""
        found = "SELECT p.location || (f ->> 'name') AS name FROM partition_versions p, jsonb_array_elements(p.files) f"
        named = {row["name"] for row in await self.system.walk.control.pool.fetch(found)}
        folders = {name.rpartition("/")[0] for name in named}
        root = self.folder / "objects"
        there = {f"s3://{path.relative_to(root)}" for path in root.rglob("*") if path.is_file()}
        return {name for name in there - named if not (name.endswith(MARKER) and name.rpartition("/")[0] in folders)}

    async def elapse(self) -> None:
        """Leases and waits of the dead are over: time is Postgres' alone, and a test may let it pass."""
        pool = self.system.walk.control.pool
        for statement in ELAPSED:
            await pool.execute(statement)
        await self.queue.execute("UPDATE pgqueue.messages SET visible_at = now() WHERE visible_at > now()")

    async def hurry(self) -> None:
        """What waits before it is tried again has waited long enough."""
        pool = self.system.walk.control.pool
        await pool.execute("UPDATE tasks SET next_retry_at = now() WHERE status = 'Failed' AND next_retry_at > now()")
        await pool.execute("UPDATE sources SET state_since = now() - interval '1 hour' WHERE state = 'Dead'")


@asynccontextmanager
async def a_storm(
    dsns: dict[str, str], folder: Path, devchain: Devchain, fork_server: ForkServer, follows: Follows
) -> AsyncIterator[Storm]:
    devchain.switch(0, START)
    branches = len(devchain.describe()["branches"])
    async with (
        walking(dsns["state"], dsns["queue"], folder, beat_seconds=0.25) as walk,
        asyncpg.create_pool(dsns["queue"], min_size=0, max_size=1) as queue,
    ):
        system = ChainSystem(walk, dsns["data"], None, devchain)
        await system.deploy(follows.dag)
        version = await system.version("live", "follow")
        with closing(psycopg.connect(dsns["data"], autocommit=True)) as data:
            storm = Storm(
                system, fork_server, folder, _document(system, dsns, folder), queue, version, branches, data, follows
            )
            try:
                yield storm
            finally:
                for worker in storm.workers:
                    worker.send(signal.SIGKILL)


def _document(system: ChainSystem, dsns: dict[str, str], folder: Path) -> dict[str, Any]:
    """Settings of a worker."""
    tls = folder / "tls"
    chain = system.devchain
    return {
        "home": str(folder),
        "queue": {"dsn": dsns["queue"]},
        "data": {"dsn": dsns["data"]},
        "tls": {"ca": str(system.walk.ca), "cert": str(tls / "server.pem"), "key": str(tls / "server.pem")},
        "endpoints": {name: system.walk.listeners[name] for name in ("dispatcher_task", "dispatcher_internal")},
        "identity": {"service_token": TOKENS["worker"]},
        "rpc_pools": {"dev": {"endpoints": f"a={chain.node('a')}", "chain_id": chain.chain_id}},
        "log": {"level": "warning"},
    }
