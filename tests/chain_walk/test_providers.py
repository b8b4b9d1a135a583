"""Nodes that lie, lag, throttle, truncate or leave logs out, as the operators meet them.

They are named in the error and nothing of theirs counts; with an honest one beside them, all is taken from that one.
Without Spark: where blocks are fetched makes no difference to what is believed. Costs about 25 s.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.chain_walk.rig import Rig, rows_of, truth
from tests.chain_walk.storm import TABLES, Follows
from tests.chain_walk.test_ingest import BACKFILL
from tests.walk.walking import working

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


async def test_ingest_names_who_is_wrong_and_commits_nothing_and_all_of_it_from_an_honest_one(bare_rig: Rig) -> None:
    rig = bare_rig
    await rig.deploy(BACKFILL.replace("runtime: ecs_platform", ONE_ATTEMPT))
    async with working(rig.worker("one", "crook", **SHORT)):
        for place, kind in enumerate([*FAULTS, "lag"]):
            rig.devchain.fault(kind, node="crook", value=60 if kind == "lag" else 0)
            await rig.trigger("backfill", "ask", place * SIZE, place * SIZE + SIZE - 1)
            await rig.settled()
            rig.devchain.clear("crook")
            said = await rig.failures()
            assert len(said) == place + 1, f"{kind} was believed: {said}"
            assert "crook" in said[-1], kind
    assert await rig.cold("backfill", "ingest") is None
    for kind in FAULTS:
        rig.devchain.fault(kind, node="crook", method="eth_getBlockReceipts", value=0)
    async with working(rig.worker("two", "crook", "honest", **RESTED)):
        await rig.trigger("backfill", "ask", 40, 59)
        await rig.settled()
    for output, table in enumerate(TABLES):
        found = await rig.cold("backfill", "ingest", output)
        assert found is not None, await rig.failures()
        assert rows_of(found, table) == truth(rig.devchain, table, 40, 59)


async def test_the_follower_waits_and_says_who_is_wrong_and_goes_on_with_an_honest_one(bare_rig: Rig) -> None:
    rig = bare_rig
    await rig.deploy(Follows().dag)
    version = await rig.version("live", "follow")
    async with working(rig.worker("one", "crook", **SHORT)):
        await rig.until_followed(version)
        for kind in SEEN_BY_THE_FOLLOWER:
            before = rig.hot_marks(version)
            rig.devchain.fault(kind, node="crook", value=0)
            rig.devchain.mine(2)
            await _until_said(rig, "crook")
            assert max(rig.hot_marks(version)) == max(before), kind
            rig.devchain.clear("crook")
            await rig.until_followed(version)
            await _until_said(rig, "follows")
    async with working(rig.worker("two", "crook", "honest", **RESTED)):
        for kind in [*FAULTS, "lag"]:
            rig.devchain.fault(kind, node="crook", value=1)
            rig.devchain.mine(2)
            await rig.until_followed(version)
            rig.devchain.clear("crook")
        await rig.settled()
        head = rig.devchain.describe()["head"]
        for output, table in enumerate(TABLES):
            assert await rig.seam("live", "follow", "compact", output, table) == truth(rig.devchain, table, 0, head)


async def test_a_throttle_said_in_json_is_waited_out(bare_rig: Rig) -> None:
    """By ingest within one attempt, and by the follower, however often it is told; no attempt is spent on it."""
    rig = bare_rig
    await rig.deploy(BACKFILL.replace("runtime: ecs_platform", ONE_ATTEMPT))
    await rig.deploy(Follows().dag)
    version = await rig.version("live", "follow")
    rig.devchain.fault("throttle_call", node="busy", method="eth_getBlockReceipts", times=3)
    async with working(rig.worker("one", "busy", **RESTED)):
        await rig.trigger("backfill", "ask", 0, 19)
        await rig.until_followed(version)
        for method in ("eth_getBlockByNumber", "eth_getBlockReceipts", "eth_chainId"):
            rig.devchain.fault("throttle_call", node="busy", method=method, times=3)
            rig.devchain.mine(2)
            await rig.until_followed(version)
        await rig.settled()
    assert await rig.failures() == []
    found = await rig.cold("backfill", "ingest")
    assert found is not None
    assert rows_of(found, "blocks") == truth(rig.devchain, "blocks", 0, 19)


async def _until_said(rig: Rig, word: str) -> None:
    async with asyncio.timeout(90):
        while word not in str(await rig.walk.control.pool.fetchval(PROGRESS)):  # noqa: ASYNC110 - another's work
            await asyncio.sleep(0.05)
