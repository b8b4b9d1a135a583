"""kill -9 of a worker in the middle of every chain operator: the retries commit, and what the dead one wrote goes.

`block_follower` writes no files; `test_storm.py` kills it at each of its points too. Costs about 30 s.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import UUID, uuid4

import pyarrow.compute as pc
import pytest

from tests.chain_walk.rig import Rig, rows_of, truth
from tests.chain_walk.test_follow import FOLLOW, equal
from tests.operators.victim import a_victim, files_in, heard, swept, told_of
from tests.walk.walking import working
from trace_platform.dispatcher.invalidate import invalidate
from trace_platform.operators.chain_tables import ALL

pytestmark = pytest.mark.anyio

PAST = """
name: past
defaults: {runtime: ecs_platform, retry: {backoff: 1s, max_backoff: 1s}}
jobs:
  - {name: ask, operator: noop, runtime: dispatcher, source: {kind: manual}}
  - name: ingest
    operator: cryo_ingest
    config: {rpc_pool: dev, chunk: 7}
    inputs: [{from: {job: ask}}]
    outputs: [blocks, transactions, logs]
  - name: decode
    operator: evm_decode
    config: {abi: erc20, events: [transfer, approval]}
    inputs: [{from: {job: ingest, output: logs}}]
    outputs: [transfers, approvals]
publish: {logs: {job: ingest, output: logs}}
"""
KEY = [("block_number", "ascending"), ("log_index", "ascending")]
HELD = 4
"""The range to be ingested, the one to be decoded again, and two to be compacted."""


async def test_a_worker_killed_in_the_middle_of_every_chain_operator_leaves_only_garbage(rig: Rig) -> None:
    await rig.deploy(PAST)
    async with working(rig.worker("first")):
        await rig.trigger("past", "ask", 0, 19)
        await rig.settled()
    before = await rig.cold("past", "decode")
    pools = {"dev": {"endpoints": f"a={rig.devchain.node('a')}", "chain_id": rig.devchain.chain_id}}
    told = told_of(rig.walk, rig.queue_dsn, rig.folder, data=rig.data_dsn, pools=pools)
    async with asyncio.timeout(240), a_victim(told) as victim:
        await rig.deploy(FOLLOW)
        await rig.trigger("past", "ask", 20, 39)
        await _decode_again(rig)
        held = [Path(key).parent for key in await heard(victim, "held", HELD)]
    assert sorted([await _job(rig, folder) for folder in held]) == ["compact", "compact", "decode", "ingest"]
    assert all(files_in(rig.folder, folder) for folder in held), "it had written something"
    assert await rig.cold("live", "compact") is None
    assert len(await rig.cold("past", "ingest") or ()) == 20  # what the first worker did, and no more

    await _time_passes(rig)
    async with working(rig.worker("second")):
        await rig.until_followed(await rig.version("live", "follow"))
        await rig.settled()
        await rig.until_equal(lambda: equal(rig))
    assert await rig.failures() == []
    await swept(rig.walk)
    assert not any(files_in(rig.folder, folder) for folder in held)
    for output, table in enumerate(ALL):
        found = await rig.cold("past", "ingest", output)
        assert found is not None
        assert rows_of(found, table) == truth(rig.devchain, table, 0, 39)
    await equal(rig)  # the janitor took nothing that counts
    again = await rig.cold("past", "decode")
    assert before is not None
    assert again is not None
    assert again.filter(pc.field("block_number") < 20).sort_by(KEY) == before.sort_by(KEY)


async def _decode_again(rig: Rig) -> None:
    org = rig.walk.org
    await invalidate(
        rig.walk.control, org.id, org.user, "logs", start=0, end=19, reason="to see it done", request_id=uuid4()
    )


async def _job(rig: Rig, attempt: Path) -> str:
    """Whose folder it is: `.../attempts/{task}/{attempt}`."""
    name = "SELECT j.name FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE t.id = $1"
    return str(await rig.walk.control.pool.fetchval(name, UUID(attempt.parent.name)))


async def _time_passes(rig: Rig) -> None:
    """Enough for the dead worker's leases."""
    pool = rig.walk.control.pool
    await pool.execute("UPDATE tasks SET lease_expires_at = now() WHERE status = 'Running'")
    async with asyncio.timeout(60):
        while await pool.fetchval("SELECT EXISTS (SELECT FROM tasks WHERE status = 'Running')"):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    await pool.execute("UPDATE tasks SET next_retry_at = now() WHERE next_retry_at > now()")
