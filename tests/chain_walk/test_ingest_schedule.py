"""`cryo_ingest` by schedule: each fire goes on where the last one ended, up to the last final block."""

from __future__ import annotations

import pytest

from tests.support import ROOT
from tests.support.systems.chain import ChainSystem, rows_of, truth
from tests.support.systems.walk import working
from tests.support.verbs import fire_schedules
from tracelake.operators.helpers.chain_tables import ALL

pytestmark = pytest.mark.anyio

EXAMPLE = (ROOT / "dags" / "evm_schedule.yaml").read_text()


async def ten_minutes_pass(system: ChainSystem) -> None:
    """One more slot, also if it was decided before."""
    pool = system.walk.control.pool
    await pool.execute("UPDATE source_slots SET slot = slot - interval '1 day'")
    await pool.execute("UPDATE tasks SET dedupe_key = gen_random_uuid()::text")
    await pool.execute("UPDATE source_schedules SET decided_until = now() - interval '10 minutes', due_at = now()")
    assert (await fire_schedules(system.walk.control)).fired == 1
    await system.settled()


async def assert_read(system: ChainSystem, last: int) -> None:
    assert await system.failures() == []
    for output, table in enumerate(ALL):
        found = await system.cold("evm_schedule", "ingest", output)
        assert found is not None
        assert rows_of(found, table) == truth(system.devchain, table, 0, last)


async def test_the_example_reads_final_blocks_from_the_last_end_on(system: ChainSystem) -> None:
    await system.deploy(EXAMPLE.replace("max_blocks: 5000", "max_blocks: 30"))
    async with working(system.worker()):
        await ten_minutes_pass(system)
        await assert_read(system, 29)
        await ten_minutes_pass(system)
        await assert_read(system, 44)  # 60 blocks, of which 15 are not final
        await ten_minutes_pass(system)
        await assert_read(system, 44)
        message = await system.walk.control.pool.fetchval(
            "SELECT progress ->> 'message' FROM tasks ORDER BY id DESC LIMIT 1"
        )
        assert message == "nothing to do: block 45 is not final yet"
        system.devchain.finality(4)
        await ten_minutes_pass(system)
        await assert_read(system, 56)
