"""Nodes that lie, lag, throttle, truncate or leave logs out, as the operators meet them.

They are named in the error and nothing of theirs counts; with an honest one beside them, all is taken from that one.
Without Spark: where blocks are fetched makes no difference to what is believed. Costs about 25 s.
"""

from __future__ import annotations

import pytest

from tests.support.chain.storm import TABLES, Follows
from tests.support.systems.chain import BACKFILL, ChainSystem, rows_of, truth
from tests.support.systems.walk import working
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

FAULTS = (
    "lie_hash",
    "lie_parent",
    "lie_receipts_root",
    "lie_value",
    "lie_log",
    "missing_transaction",
    "missing_receipt",
    "missing_log",
    "empty_logs",
    "null_block",
    "throttle",
    "throttle_call",
    "truncate",
    "drop",
)
SEEN_BY_THE_FOLLOWER = ("lie_hash", "lie_log", "empty_logs", "null_block", "throttle", "throttle_call", "truncate")
RESTED = {"timeout": 5.0, "rest": 0.05, "longest_rest": 0.2}
"""A process remembers how often a node failed: after fourteen faults in a row it would rest for long."""
SHORT = RESTED | {"attempts": 2}
SIZE = 4
ONE_ATTEMPT = "runtime: ecs_platform\n    max_attempts: 1\n    max_platform_failures: 1"
PROGRESS = "SELECT t.progress ->> 'message' FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = 'follow'"


async def test_ingest_names_the_wrong_node_and_commits_nothing_from_it_and_all_from_an_honest_one(
    bare_system: ChainSystem,
) -> None:
    system = bare_system
    await system.deploy(BACKFILL.replace("runtime: ecs_platform", ONE_ATTEMPT))
    async with working(system.worker("one", "crook", **SHORT)):
        for place, kind in enumerate([*FAULTS, "lag"]):
            system.devchain.fault(kind, node="crook", value=60 if kind == "lag" else 0)
            await system.trigger("backfill", "ask", place * SIZE, place * SIZE + SIZE - 1)
            await system.settled()
            system.devchain.clear("crook")
            message = await system.failures()
            assert len(message) == place + 1, f"{kind} was believed: {message}"
            assert "crook" in message[-1], kind
    assert await system.cold("backfill", "ingest") is None
    for kind in FAULTS:
        system.devchain.fault(kind, node="crook", method="eth_getBlockReceipts", value=0)
    async with working(system.worker("two", "crook", "honest", **RESTED)):
        await system.trigger("backfill", "ask", 40, 59)
        await system.settled()
    for output, table in enumerate(TABLES):
        found = await system.cold("backfill", "ingest", output)
        assert found is not None, await system.failures()
        assert rows_of(found, table) == truth(system.devchain, table, 40, 59)


async def test_the_follower_waits_names_the_wrong_node_and_goes_on_with_an_honest_one(
    bare_system: ChainSystem,
) -> None:
    system = bare_system
    await system.deploy(Follows().dag)
    version = await system.version("live", "follow")
    async with working(system.worker("one", "crook", **SHORT)):
        await system.until_followed(version)
        for kind in SEEN_BY_THE_FOLLOWER:
            before = system.hot_marks(version)
            system.devchain.fault(kind, node="crook", value=0)
            system.devchain.mine(2)
            await _until_said(system, "crook")
            assert max(system.hot_marks(version)) == max(before), kind
            system.devchain.clear("crook")
            await system.until_followed(version)
            await _until_said(system, "follows")
    async with working(system.worker("two", "crook", "honest", **RESTED)):
        for kind in [*FAULTS, "lag"]:
            system.devchain.fault(kind, node="crook", value=1)
            system.devchain.mine(2)
            await system.until_followed(version)
            system.devchain.clear("crook")
        await system.settled()
        head = system.devchain.describe()["head"]
        for output, table in enumerate(TABLES):
            assert await system.current_rows("live", "follow", "compact", output, table) == truth(
                system.devchain, table, 0, head
            )


async def test_a_throttle_said_in_json_is_waited_out(bare_system: ChainSystem) -> None:
    """By ingest within one attempt, and by the follower, however often it happens; no attempt is spent on it."""
    system = bare_system
    await system.deploy(BACKFILL.replace("runtime: ecs_platform", ONE_ATTEMPT))
    await system.deploy(Follows().dag)
    version = await system.version("live", "follow")
    system.devchain.fault("throttle_call", node="busy", method="eth_getBlockReceipts", times=3)
    async with working(system.worker("one", "busy", **RESTED)):
        await system.trigger("backfill", "ask", 0, 19)
        await system.until_followed(version)
        for method in ("eth_getBlockByNumber", "eth_getBlockReceipts", "eth_chainId"):
            system.devchain.fault("throttle_call", node="busy", method=method, times=3)
            system.devchain.mine(2)
            await system.until_followed(version)
        await system.settled()
    assert await system.failures() == []
    found = await system.cold("backfill", "ingest")
    assert found is not None
    assert rows_of(found, "blocks") == truth(system.devchain, "blocks", 0, 19)


async def _until_said(system: ChainSystem, word: str) -> None:

    async def reached() -> bool:
        return word in str(await system.walk.control.pool.fetchval(PROGRESS))

    await until(reached, "the progress of the source has the word")
