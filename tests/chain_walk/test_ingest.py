"""`cryo_ingest`: what is committed is what the chain has."""

from __future__ import annotations

import pytest

from tests.chain_walk.rig import Rig, rows_of, truth
from tests.walk.walking import working
from tracelake.operators.helpers.chain_tables import ALL

pytestmark = pytest.mark.anyio

BACKFILL = """
name: backfill
jobs:
  - {name: ask, operator: noop, runtime: dispatcher, source: {kind: manual}}
  - {name: cut, operator: range_splitter, runtime: dispatcher, config: {chunk: 20}, inputs: [{from: {job: ask}}]}
  - name: ingest
    operator: cryo_ingest
    runtime: ecs_platform
    config: {rpc_pool: dev, chunk: 7}
    inputs: [{from: {job: cut}}]
    outputs: [blocks, transactions, logs]
    retry: {backoff: 1s, max_backoff: 1s}
"""


async def test_a_range_becomes_files_that_equal_the_chain_row_for_row(rig: Rig) -> None:
    await ingested(rig)


async def test_a_range_becomes_the_same_files_on_s3(s3_rig: Rig) -> None:
    """10 s."""
    await ingested(s3_rig)


async def ingested(rig: Rig) -> None:
    await rig.deploy(BACKFILL)
    async with working(rig.worker()):
        await rig.trigger("backfill", "ask", 3, 59)
        await rig.settled()
    assert await rig.failures() == []
    for output, table in enumerate(ALL):
        found = await rig.cold("backfill", "ingest", output)
        assert found is not None
        assert rows_of(found, table) == truth(rig.devchain, table, 3, 59)


async def test_a_lying_node_is_named_and_nothing_is_committed(rig: Rig) -> None:
    await rig.deploy(BACKFILL + "    max_platform_failures: 1\n")
    rig.devchain.fault("lie_hash", node="crook")
    async with working(rig.worker("one", "crook", attempts=1)):
        await rig.trigger("backfill", "ask", 0, 19)
        await rig.settled()
    assert await rig.cold("backfill", "ingest") is None
    (said,) = await rig.failures()
    assert "crook" in said


async def test_what_is_not_final_yet_is_ingested_and_said(bare_rig: Rig) -> None:
    """A backfill is not corrected after a reorg: who asks for blocks near the tip is told so."""
    rig = bare_rig
    await rig.deploy(BACKFILL)
    async with working(rig.worker()):
        await rig.trigger("backfill", "ask", 3, 59)
        await rig.settled()
    assert await rig.failures() == []
    rows = await rig.walk.control.pool.fetch(
        "SELECT t.progress ->> 'message' AS it FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = 'ingest'"
    )
    said = "not final yet: blocks 45-59; if a reorg replaces them, what was read stays"
    assert len(rows) == len(["3-19", "20-39", "40-59"])
    assert [row["it"] for row in rows if row["it"] not in {None, "blocks"}] == [said]
