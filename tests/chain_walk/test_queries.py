"""Queries on a followed chain: hot and cold rows are one table, and a query sees one snapshot of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.chain.queries import query_answerer, run_query, with_sail
from tests.support.identity.service_tokens import proven_user
from tests.support.pause import paused
from tests.support.systems.chain import FOLLOW, ChainSystem, truth
from tests.support.systems.walk import working
from tracelake.errors import Unavailable
from tracelake.query.answer import QueryAnswerer
from tracelake.query.encode import rows_of
from tracelake.query.sail.connect import ConnectSession
from tracelake.wire.internal.queries import QueryRequest
from tracelake.wire.json_values import plain

pytestmark = pytest.mark.anyio
PUBLISHED = """
publish:
  chain_blocks: {job: follow, output: blocks}
  cold_blocks: {job: compact, output: blocks}
"""
WHOLE = """
    SELECT count(*) AS n, count(DISTINCT block_number) AS different, min(block_number) AS low, max(block_number) AS high
      FROM chain_blocks
"""


async def test_a_query_sees_one_snapshot_through_reorgs_commits_and_compactions(
    system: ChainSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await system.deploy(FOLLOW + PUBLISHED)
    answerer = query_answerer(system, tmp_path)
    async with with_sail(answerer, system, tmp_path) as on_sail, working(system.worker()):
        version = await system.version("live", "follow")
        await system.until_followed(version)
        for depth in (2, 9):
            system.devchain.mine(15)
            system.devchain.reorg(depth)
            for engine in (answerer, on_sail, on_sail):  # while it follows, gathers, compacts and sweeps
                ((count, different, low, high),) = await run_query(engine, WHOLE)
                assert (low, different, count) == (0, count, high + 1), "no block is missing, and none is there twice"
        await system.settled()
        head = system.devchain.describe()["head"]
        with paused(monkeypatch, ConnectSession, "rows") as pause:  # it has its rows and files, and has read none
            asked = asyncio.create_task(on_sail.for_user(proven_user("test|acme"), QueryRequest(sql=WHOLE)))
            await pause.reached()
            system.devchain.mine(30)  # one more compaction: it also ends those before it
            await system.until_followed(version)
            await system.settled()
        answer, table = await asked
        assert (answer.engine, rows_of(table)) == ("sail", [[head + 1, head + 1, 0, head]])
        await system.until_equal(lambda: equal(system, answerer))
    assert await system.failures() == []
    assert min(system.hot_marks(version)) >= 20  # much of what was read came from files
    ((cold,),) = await run_query(answerer, "SELECT count(*) AS n FROM cold_blocks")
    assert 0 < cold < system.devchain.describe()["head"], "the compacted dataset by its own name is what was compacted"


async def equal(system: ChainSystem, answerer: QueryAnswerer) -> None:
    head = system.devchain.describe()["head"]
    expected = truth(system.devchain, "blocks", 0, head)
    names = ", ".join(expected[0])
    try:
        found = await run_query(answerer, f"SELECT {names} FROM chain_blocks ORDER BY block_number")  # noqa: S608 - its columns
    except Unavailable as away:
        raise AssertionError(away.message) from None
    assert found == [[plain(value) for value in row.values()] for row in expected]
