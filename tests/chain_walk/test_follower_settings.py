"""What followers can be told: where to begin, what to tell of, to begin anew with each version. Without Spark."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import psycopg
import pytest

from tests.chain_walk.looks import Watched, until_looked, watched
from tests.chain_walk.rig import Rig
from tests.support.devchain import running
from tests.walk.walking import working
from tracelake.chain.rpc_pool import Endpoint, RpcPool

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
TOLD = """
SELECT lower(e.block_range) AS first, upper(e.block_range) - 1 AS last
  FROM events e JOIN datasets d ON d.id = e.dataset_uuid WHERE d.producer_dag_name = $1 ORDER BY 1
"""
DOUBLED = """
INSERT INTO pgqueue.messages (visible_at, sent_at, queue, body)
SELECT m.visible_at, m.sent_at, m.queue, m.body FROM pgqueue.messages m, generate_series(1, 3)
"""
OF_FINAL = "SELECT {} FROM {} o JOIN datasets d ON d.id = o.dataset_uuid WHERE d.producer_output_index = 1"
TAKEN_BACK = "SELECT lower(block_range) AS first, upper(block_range) - 1 AS last FROM data_invalidations"


async def test_a_follower_tells_of_each_block_or_of_all_that_came_together_from_its_first_block_on(
    bare_rig: Rig,
) -> None:
    rig, head = bare_rig, bare_rig.devchain.describe()["head"]
    for strategy in ("per_block", "per_range"):
        await rig.deploy(dag(strategy, f"start_block: {head - 9}, emit_strategy: {strategy}"))
    async with working(rig.worker()):
        for strategy in ("per_block", "per_range"):
            version = await rig.version(strategy, "follow")
            await rig.until_followed(version)
            assert sorted(rig.hot_marks(version)) == list(range(head - 9, head + 1))
        told = {name: await told_until(rig, name, head) for name in ("per_block", "per_range")}
    assert told["per_block"] == [(number, number) for number in range(head - 9, head + 1)]
    assert told["per_range"] == [(head - 9, head)]


async def test_outputs_are_reset_once_for_each_version_and_never_by_a_restart(bare_rig: Rig) -> None:
    rig, first = bare_rig, bare_rig.devchain.describe()["head"] + 3
    text = dag("anew", "start_block: latest").replace("source: {", "bootstrap: {reset_outputs: true}\n    source: {")
    await rig.deploy(text)
    version = await rig.version("anew", "follow")
    for begins in (first, first):  # the second worker goes on where the first one ended
        assert await followed_from(rig) == begins
    await rig.deploy(text + MORE)
    assert await rig.version("anew", "follow") == version, "it writes the same dataset as before"
    second = rig.devchain.describe()["head"] + 3
    for begins in (second, second):
        assert await followed_from(rig) == begins


async def test_how_a_follower_works_is_changed_by_a_deploy_without_beginning_anew(bare_rig: Rig) -> None:
    rig, first = bare_rig, bare_rig.devchain.describe()["head"]
    text = dag("tuned", "start_block: latest")
    await rig.deploy(text)
    version = await rig.version("tuned", "follow")
    async with working(rig.worker()):
        await rig.until_followed(version)
        await told_until(rig, "tuned", first)
    rig.devchain.mine(3)
    await rig.deploy(text.replace("poll_seconds: 0.05", "poll_seconds: 0.1, batch: 1"))
    assert await rig.version("tuned", "follow") == version
    async with working(rig.worker()):
        told = await told_until(rig, "tuned", first + 3)
    assert rig.hot_marks(version) == hashes(rig, first)
    assert told == [(number, number) for number in range(first, first + 4)], "one at a time, as it is told now"


async def test_a_reorg_below_the_first_block_of_a_follower_that_began_at_the_tip_replaces_all_it_has(
    bare_rig: Rig,
) -> None:
    rig, first = bare_rig, bare_rig.devchain.describe()["head"]
    await rig.deploy(dag("tip", "start_block: latest"))
    async with working(rig.worker()):
        version = await rig.version("tip", "follow")
        await rig.until_followed(version)
        for depth, more in ((1, 2), (2, 6), (13, 15)):  # at its first block, and below it
            reached = rig.devchain.describe()["head"]
            rig.devchain.reorg(depth, more)
            await rig.until_followed(version)
            assert rig.hot_marks(version) == hashes(rig, first)
            assert (first, reached) in await invalidated(rig, reached)
        assert await rig.failures() == []


@pytest.mark.parametrize(("strategy", "more"), [("per_range", 5), ("per_block", 130)])
async def test_what_becomes_final_in_the_step_of_a_reorg_is_told_and_not_taken_back(
    bare_rig: Rig, strategy: str, more: int
) -> None:
    """Nobody has read it yet, so nobody is to read it again; also if there is more to tell than one call holds."""
    rig, head = bare_rig, bare_rig.devchain.describe()["head"]
    text = dag("late", f"start_block: {head - 20}, emit_strategy: {strategy}")
    await rig.deploy(text.replace("config:", "outputs: [blocks, final]\n    config:"))
    version = await rig.version("late", "follow")
    async with working(rig.worker()):
        await rig.until_followed(version)
        await told_final(rig, head - rig.devchain.describe()["finality"])
    rig.devchain.reorg(3, more)
    rig.devchain.finality(1)
    async with working(rig.worker()):
        await rig.until_followed(version)
        assert (head - 2, head) in await invalidated(rig, head)
        await told_final(rig, head - 3 + more - 1)
    assert await rig.walk.control.pool.fetchval(OF_FINAL.format("count(*)", "data_invalidations")) == 0


async def test_a_node_that_has_not_reached_the_first_block_yet_is_waited_for(bare_rig: Rig) -> None:
    rig, first = bare_rig, bare_rig.devchain.describe()["head"]
    await rig.deploy(dag("tip", "start_block: latest"))
    with watched(rig.devchain.node("a")) as node:
        await waited_for(rig, node, first)
    assert await rig.walk.control.pool.fetchval("SELECT count(*) FROM data_invalidations") == 0


async def waited_for(rig: Rig, node: Watched, first: int) -> None:
    async with working(rig.worker_on(rig.pool(node))):
        version = await rig.version("tip", "follow")
        await rig.until_followed(version)
        rig.devchain.mine(3)
        await rig.until_followed(version)
        had = rig.hot_marks(version)
        rig.devchain.set_head(first - 2)
        await until_looked(node)
        assert rig.hot_marks(version) == had
        rig.devchain.set_head(first + 3)
        rig.devchain.mine(1)
        await rig.until_followed(version)
        assert rig.hot_marks(version) == hashes(rig, first)


async def test_wake_ups_of_one_follower_that_come_together_start_it_once(bare_rig: Rig) -> None:
    rig, worker = bare_rig, bare_rig.worker()
    await rig.deploy(dag("once", "start_block: latest"))
    with psycopg.connect(rig.queue_dsn, autocommit=True) as queue:
        async with asyncio.timeout(60):
            while not queue.execute(DOUBLED).rowcount:  # noqa: ASYNC110 - another process makes it
                await asyncio.sleep(0.05)
    async with working(worker):
        version = await rig.version("once", "follow")
        await rig.until_followed(version)
        rig.devchain.mine(1)
        await rig.until_followed(version)
        assert len(worker.sources) == 1


async def test_a_follower_ends_soon_when_it_is_told_to_though_its_node_never_answers(bare_rig: Rig) -> None:
    rig = bare_rig
    await rig.deploy(dag("mute", "start_block: latest"))
    async with a_mute_node() as (url, asked):
        pool = RpcPool("mute", rig.devchain.chain_id, (Endpoint(url, "mute"),), timeout=3600)
        async with working(rig.worker_on(pool)):
            async with asyncio.timeout(60):
                await asked.wait()
        # Here working() has asked it to stop, and has waited for that.
    assert await rig.failures() == []


async def test_a_follower_ends_soon_when_its_lease_is_lost_though_its_node_never_answers(bare_rig: Rig) -> None:
    rig = bare_rig
    await rig.deploy(dag("mute", "start_block: latest"))
    async with a_mute_node() as (url, asked):
        pool = RpcPool("mute", rig.devchain.chain_id, (Endpoint(url, "mute"),), timeout=3600)
        worker = rig.worker_on(pool)
        async with working(worker):
            async with asyncio.timeout(60):
                await asked.wait()
            [api] = worker.sources
            api.lost.set()
            async with asyncio.timeout(60):
                while api in worker.sources:  # noqa: ASYNC110 - a thread is waited for
                    await asyncio.sleep(0.05)


@pytest.mark.parametrize("nodes", [("behind", "ahead"), ("ahead", "behind")])
async def test_a_node_that_lags_does_not_hold_a_follower_back(bare_rig: Rig, nodes: tuple[str, str]) -> None:
    rig = bare_rig
    await rig.deploy(dag("tip", "start_block: 40"))
    async with working(rig.worker("one", *nodes)):
        version = await rig.version("tip", "follow")
        await rig.until_followed(version)
        rig.devchain.fault("lag", node="behind", value=3)
        rig.devchain.mine(3)
        await rig.until_followed(version)


async def test_nodes_on_two_forks_do_not_make_rows_go_back_and_forth_and_the_longer_one_is_followed(
    bare_rig: Rig,
) -> None:
    rig = bare_rig
    await rig.deploy(dag("torn", "start_block: 40"))
    with (
        running(blocks=60, finality=16) as other,
        watched(rig.devchain.node("a")) as ours,
        watched(other.node("b"), "b") as theirs,
    ):
        other.reorg(5, 7)
        async with working(rig.worker_on(rig.pool(ours, theirs))):
            version = await rig.version("torn", "follow")
            for longer in (rig.devchain, other, rig.devchain):
                longer.mine(4)
                there = replace(rig, devchain=longer)
                await there.until_followed(version)
                written = writings(rig)
                await until_looked(ours, theirs)
                assert writings(rig) == written
                assert rig.hot_marks(version) == hashes(there, 40)
        assert await rig.failures() == []


def writings(rig: Rig) -> int:
    with psycopg.connect(rig.data_dsn) as connection:
        row = connection.execute("SELECT last_value FROM trace_meta.hot_seq").fetchone()
    assert row is not None
    return int(row[0])


@asynccontextmanager
async def a_mute_node() -> AsyncIterator[tuple[str, asyncio.Event]]:
    """It takes every connection and question, and answers none."""
    asked, open_ones = asyncio.Event(), list[asyncio.StreamWriter]()

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_ones.append(writer)
        await reader.read(1)
        asked.set()

    async with await asyncio.start_server(hear, "127.0.0.1", 0) as server:
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", asked
        finally:
            for writer in open_ones:
                writer.transport.abort()


def hashes(rig: Rig, first: int) -> dict[int, bytes]:
    """The chain from a block on."""
    chain = rig.devchain.chain()
    return {number: bytes.fromhex(chain.block(number).hash[2:]) for number in range(first, chain.head + 1)}


async def invalidated(rig: Rig, last: int) -> list[tuple[int, int]]:
    """What was taken back, when this block was: that is after its rows are there."""
    async with asyncio.timeout(60):
        while True:
            rows = await rig.walk.control.pool.fetch(TAKEN_BACK)
            spans = [(row["first"], row["last"]) for row in rows]
            if any(span[1] == last for span in spans):
                return spans
            await asyncio.sleep(0.05)


def dag(name: str, config: str) -> str:
    return DAG.replace("NAME", name).replace("CONFIG", config)


async def told_until(rig: Rig, name: str, last: int) -> list[tuple[int, int]]:
    """What was told, when the last block was: that is after its rows are there."""
    async with asyncio.timeout(120):
        while True:
            told = [(row["first"], row["last"]) for row in await rig.walk.control.pool.fetch(TOLD, name)]
            if told and told[-1][1] == last:
                return told
            await asyncio.sleep(0.05)


async def told_final(rig: Rig, last: int) -> None:
    async with asyncio.timeout(60):
        told = OF_FINAL.format("max(upper(o.block_range)) - 1", "events")
        while await rig.walk.control.pool.fetchval(told) != last:  # noqa: ASYNC110 - a worker's work is waited for
            await asyncio.sleep(0.05)


async def followed_from(rig: Rig) -> int:
    """Three blocks later, by a worker that was started then: the first block that is there."""
    rig.devchain.mine(3)
    async with working(rig.worker()):
        version = await rig.version("anew", "follow")
        await rig.until_followed(version)
        rig.devchain.mine(1)
        await rig.until_followed(version)
    return min(rig.hot_marks(version))
