"""Settings of followers: first block, events, and reset with each version. Without Spark."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import psycopg
import pytest

from tests.support.chain.devchain import running
from tests.support.chain.proxies import CountingNode, counting_node, until_polled
from tests.support.systems.chain import ChainSystem
from tests.support.systems.walk import working
from tests.support.waiting import SECONDS, until
from tracelake.chain.nodes.rpc_pool import Endpoint, RpcPool

pytestmark = pytest.mark.anyio

DAG = """
name: NAME
defaults: {runtime: ecs_platform, retry: {backoff: 1s, max_backoff: 1s}}
jobs:
  - name: follow
    operator: block_follower
    source: {kind: always_on}
    config: {rpc_pool: dev, poll_seconds: 0.05, tables: [blocks], CONFIG}
    heartbeat_interval_seconds: 1s
"""
MORE = "  - {name: ask, operator: noop, runtime: dispatcher, source: {kind: manual}}\n"
EVENT_RANGES = """
SELECT lower(e.block_range) AS first, upper(e.block_range) - 1 AS last
  FROM events e JOIN datasets d ON d.id = e.dataset_uuid WHERE d.producer_dag_name = $1 ORDER BY 1
"""
DOUBLED = """
INSERT INTO pgqueue.messages (visible_at, sent_at, queue, body)
SELECT m.visible_at, m.sent_at, m.queue, m.body FROM pgqueue.messages m, generate_series(1, 3)
"""
OF_FINAL = "SELECT {} FROM {} o JOIN datasets d ON d.id = o.dataset_uuid WHERE d.producer_output_index = 1"
TAKEN_BACK = "SELECT lower(block_range) AS first, upper(block_range) - 1 AS last FROM data_invalidations"


async def test_a_follower_emits_an_event_per_block_or_per_range_from_its_first_block_on(
    bare_system: ChainSystem,
) -> None:
    system, head = bare_system, bare_system.devchain.describe()["head"]
    for strategy in ("per_block", "per_range"):
        await system.deploy(dag(strategy, f"start_block: {head - 9}, emit_strategy: {strategy}"))
    async with working(system.worker()):
        for strategy in ("per_block", "per_range"):
            version = await system.version(strategy, "follow")
            await system.until_followed(version)
            assert sorted(system.hot_marks(version)) == list(range(head - 9, head + 1))
        ranges = {name: await events_until(system, name, head) for name in ("per_block", "per_range")}
    assert ranges["per_block"] == [(number, number) for number in range(head - 9, head + 1)]
    assert ranges["per_range"] == [(head - 9, head)]


async def test_outputs_are_reset_once_for_each_version_and_never_by_a_restart(bare_system: ChainSystem) -> None:
    system, first = bare_system, bare_system.devchain.describe()["head"] + 3
    text = dag("anew", "start_block: latest").replace("source: {", "bootstrap: {reset_outputs: true}\n    source: {")
    await system.deploy(text)
    version = await system.version("anew", "follow")
    for begins in (first, first):  # the second worker goes on where the first one ended
        assert await followed_from(system) == begins
    await system.deploy(text + MORE)
    assert await system.version("anew", "follow") == version, "it writes the same dataset as before"
    second = system.devchain.describe()["head"] + 3
    for begins in (second, second):
        assert await followed_from(system) == begins


async def test_how_a_follower_works_is_changed_by_a_deploy_without_beginning_anew(bare_system: ChainSystem) -> None:
    system, first = bare_system, bare_system.devchain.describe()["head"]
    text = dag("tuned", "start_block: latest")
    await system.deploy(text)
    version = await system.version("tuned", "follow")
    async with working(system.worker()):
        await system.until_followed(version)
        await events_until(system, "tuned", first)
    system.devchain.mine(3)
    await system.deploy(text.replace("poll_seconds: 0.05", "poll_seconds: 0.1, batch: 1"))
    assert await system.version("tuned", "follow") == version
    async with working(system.worker()):
        ranges = await events_until(system, "tuned", first + 3)
    assert system.hot_marks(version) == hashes(system, first)
    assert ranges == [(number, number) for number in range(first, first + 4)], "one at a time, as it is configured now"


async def test_a_reorg_below_the_first_block_of_a_follower_that_began_at_the_tip_replaces_all_it_has(
    bare_system: ChainSystem,
) -> None:
    system, first = bare_system, bare_system.devchain.describe()["head"]
    await system.deploy(dag("tip", "start_block: latest"))
    async with working(system.worker()):
        version = await system.version("tip", "follow")
        await system.until_followed(version)
        for depth, more in ((1, 2), (2, 6), (13, 15)):  # at its first block, and below it
            reached = system.devchain.describe()["head"]
            system.devchain.reorg(depth, more)
            await system.until_followed(version)
            assert system.hot_marks(version) == hashes(system, first)
            assert (first, reached) in await invalidated(system, reached)
        assert await system.failures() == []


@pytest.mark.parametrize(("strategy", "more"), [("per_range", 5), ("per_block", 130)])
async def test_blocks_that_become_final_in_the_step_of_a_reorg_are_emitted_and_not_invalidated(
    bare_system: ChainSystem, strategy: str, more: int
) -> None:
    """No job has read them yet, so none has to read them again; also with more events than one call holds."""
    system, head = bare_system, bare_system.devchain.describe()["head"]
    text = dag("late", f"start_block: {head - 20}, emit_strategy: {strategy}")
    await system.deploy(text.replace("config:", "outputs: [blocks, final]\n    config:"))
    version = await system.version("late", "follow")
    async with working(system.worker()):
        await system.until_followed(version)
        await until_final_event(system, head - system.devchain.describe()["finality"])
    system.devchain.reorg(3, more)
    system.devchain.finality(1)
    async with working(system.worker()):
        await system.until_followed(version)
        assert (head - 2, head) in await invalidated(system, head)
        await until_final_event(system, head - 3 + more - 1)
    assert await system.walk.control.pool.fetchval(OF_FINAL.format("count(*)", "data_invalidations")) == 0


async def test_a_node_that_has_not_reached_the_first_block_yet_is_waited_for(bare_system: ChainSystem) -> None:
    system, first = bare_system, bare_system.devchain.describe()["head"]
    await system.deploy(dag("tip", "start_block: latest"))
    with counting_node(system.devchain.node("a")) as node:
        await waited_for(system, node, first)
    assert await system.walk.control.pool.fetchval("SELECT count(*) FROM data_invalidations") == 0


async def waited_for(system: ChainSystem, node: CountingNode, first: int) -> None:
    async with working(system.worker_on(system.pool(node))):
        version = await system.version("tip", "follow")
        await system.until_followed(version)
        system.devchain.mine(3)
        await system.until_followed(version)
        had = system.hot_marks(version)
        system.devchain.set_head(first - 2)
        await until_polled(node)
        assert system.hot_marks(version) == had
        system.devchain.set_head(first + 3)
        system.devchain.mine(1)
        await system.until_followed(version)
        assert system.hot_marks(version) == hashes(system, first)


async def test_wake_ups_of_one_follower_that_come_together_start_it_once(bare_system: ChainSystem) -> None:
    system, worker = bare_system, bare_system.worker()
    await system.deploy(dag("once", "start_block: latest"))
    with psycopg.connect(system.queue_dsn, autocommit=True) as queue:
        await until(lambda: bool(queue.execute(DOUBLED).rowcount), "the wake-up is in the queue twice")
    async with working(worker):
        version = await system.version("once", "follow")
        await system.until_followed(version)
        system.devchain.mine(1)
        await system.until_followed(version)
        assert len(worker.sources) == 1


async def test_a_follower_stops_soon_on_request_though_its_node_never_answers(bare_system: ChainSystem) -> None:
    system = bare_system
    await system.deploy(dag("mute", "start_block: latest"))
    async with a_mute_node() as (url, called):
        pool = RpcPool("mute", system.devchain.chain_id, (Endpoint(url, "mute"),), timeout=3600)
        async with working(system.worker_on(pool)):
            async with asyncio.timeout(SECONDS):
                await called.wait()
        # Here working() has stopped it, and has waited for that.
    assert await system.failures() == []


async def test_a_follower_ends_soon_when_its_lease_is_lost_though_its_node_never_answers(
    bare_system: ChainSystem,
) -> None:
    system = bare_system
    await system.deploy(dag("mute", "start_block: latest"))
    async with a_mute_node() as (url, called):
        pool = RpcPool("mute", system.devchain.chain_id, (Endpoint(url, "mute"),), timeout=3600)
        worker = system.worker_on(pool)
        async with working(worker):
            async with asyncio.timeout(SECONDS):
                await called.wait()
            [api] = worker.sources
            api.lost.set()
            await until(lambda: api not in worker.sources, "the worker has released the source")


@pytest.mark.parametrize("nodes", [("behind", "ahead"), ("ahead", "behind")])
async def test_a_node_that_lags_does_not_hold_a_follower_back(bare_system: ChainSystem, nodes: tuple[str, str]) -> None:
    system = bare_system
    await system.deploy(dag("tip", "start_block: 40"))
    async with working(system.worker("one", *nodes)):
        version = await system.version("tip", "follow")
        await system.until_followed(version)
        system.devchain.fault("lag", node="behind", value=3)
        system.devchain.mine(3)
        await system.until_followed(version)


async def test_nodes_on_two_forks_do_not_make_rows_go_back_and_forth_and_the_longer_one_is_followed(
    bare_system: ChainSystem,
) -> None:
    system = bare_system
    await system.deploy(dag("torn", "start_block: 40"))
    with (
        running(blocks=60, finality=16) as other,
        counting_node(system.devchain.node("a")) as ours,
        counting_node(other.node("b"), "b") as theirs,
    ):
        other.reorg(5, 7)
        async with working(system.worker_on(system.pool(ours, theirs))):
            version = await system.version("torn", "follow")
            for longer in (system.devchain, other, system.devchain):
                longer.mine(4)
                there = replace(system, devchain=longer)
                await there.until_followed(version)
                written = writings(system)
                await until_polled(ours, theirs)
                assert writings(system) == written
                assert system.hot_marks(version) == hashes(there, 40)
        assert await system.failures() == []


def writings(system: ChainSystem) -> int:
    with psycopg.connect(system.data_dsn) as connection:
        row = connection.execute("SELECT last_value FROM trace_meta.hot_seq").fetchone()
    assert row is not None
    return int(row[0])


@asynccontextmanager
async def a_mute_node() -> AsyncIterator[tuple[str, asyncio.Event]]:
    """Accepts every connection and request, and answers none."""
    called, writers = asyncio.Event(), list[asyncio.StreamWriter]()

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await reader.read(1)
        called.set()

    async with await asyncio.start_server(hear, "127.0.0.1", 0) as server:
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", called
        finally:
            for writer in writers:
                writer.transport.abort()


def hashes(system: ChainSystem, first: int) -> dict[int, bytes]:
    """The chain from a block on."""
    chain = system.devchain.chain()
    return {number: bytes.fromhex(chain.block(number).hash[2:]) for number in range(first, chain.head + 1)}


async def invalidated(system: ChainSystem, last: int) -> list[tuple[int, int]]:
    """The invalidated ranges, once this block is in one, which is after its rows are there."""
    async with asyncio.timeout(SECONDS):
        while True:
            rows = await system.walk.control.pool.fetch(TAKEN_BACK)
            spans = [(row["first"], row["last"]) for row in rows]
            if any(span[1] == last for span in spans):
                return spans
            await asyncio.sleep(0.05)


def dag(name: str, config: str) -> str:
    return DAG.replace("NAME", name).replace("CONFIG", config)


async def events_until(system: ChainSystem, name: str, last: int) -> list[tuple[int, int]]:
    """The ranges of the events, once the last block has one, which is after its rows are there."""
    async with asyncio.timeout(SECONDS):
        while True:
            ranges = [(row["first"], row["last"]) for row in await system.walk.control.pool.fetch(EVENT_RANGES, name)]
            if ranges and ranges[-1][1] == last:
                return ranges
            await asyncio.sleep(0.05)


async def until_final_event(system: ChainSystem, last: int) -> None:
    last_final = OF_FINAL.format("max(upper(o.block_range)) - 1", "events")

    async def reached() -> bool:
        return bool(await system.walk.control.pool.fetchval(last_final) == last)

    await until(reached, "the event of the last final block is stored")


async def followed_from(system: ChainSystem) -> int:
    """Three blocks later, by a worker that was started then: the first block that is there."""
    system.devchain.mine(3)
    async with working(system.worker()):
        version = await system.version("anew", "follow")
        await system.until_followed(version)
        system.devchain.mine(1)
        await system.until_followed(version)
    return min(system.hot_marks(version))
