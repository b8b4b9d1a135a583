"""`cryo_ingest`: what is committed is what the chain has."""

from __future__ import annotations

import pytest

from tests.support.systems.chain import BACKFILL, ChainSystem, rows_of, truth
from tests.support.systems.walk import working
from tracelake.operators.helpers.chain_tables import ALL

pytestmark = pytest.mark.anyio


async def test_a_range_becomes_files_that_equal_the_chain_row_for_row(system: ChainSystem) -> None:
    await ingested(system)


async def test_a_range_becomes_the_same_files_on_s3(s3_system: ChainSystem) -> None:
    """10 s."""
    await ingested(s3_system)


async def ingested(system: ChainSystem) -> None:
    await system.deploy(BACKFILL)
    async with working(system.worker()):
        await system.trigger("backfill", "ask", 3, 59)
        await system.settled()
    assert await system.failures() == []
    for output, table in enumerate(ALL):
        found = await system.cold("backfill", "ingest", output)
        assert found is not None
        assert rows_of(found, table) == truth(system.devchain, table, 3, 59)


async def test_a_lying_node_is_named_and_nothing_is_committed(system: ChainSystem) -> None:
    await system.deploy(BACKFILL + "    max_platform_failures: 1\n")
    system.devchain.fault("lie_hash", node="crook")
    async with working(system.worker("one", "crook", attempts=1)):
        await system.trigger("backfill", "ask", 0, 19)
        await system.settled()
    assert await system.cold("backfill", "ingest") is None
    (message,) = await system.failures()
    assert "crook" in message


async def test_what_is_not_final_yet_is_ingested_and_said(bare_system: ChainSystem) -> None:
    """A backfill is not corrected after a reorg: a job for blocks near the tip gets a warning."""
    system = bare_system
    await system.deploy(BACKFILL)
    async with working(system.worker()):
        await system.trigger("backfill", "ask", 3, 59)
        await system.settled()
    assert await system.failures() == []
    rows = await system.walk.control.pool.fetch(
        "SELECT t.progress ->> 'message' AS it FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = 'ingest'"
    )
    message = "not final yet: blocks 45-59; if a reorg replaces them, what was read stays"
    assert len(rows) == len(["3-19", "20-39", "40-59"])
    assert [row["it"] for row in rows if row["it"] not in {None, "blocks"}] == [message]
