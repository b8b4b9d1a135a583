"""The quickstart DAG on a small chain: backfill, follow, reorgs, compact, decode; then every row is compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.chain_walk.rig import Rig, rows_of, truth
from tests.walk.walking import working
from trace_platform.lite.demo import quickstart
from trace_platform.operators.chain_tables import ALL

PAST = 20
DAG = "evm_quickstart"
SMALLER = {"2000": str(PAST), "chunk: 500": "chunk: 20", "size: 50": "size: 20", "grace_seconds: 5": "grace_seconds: 0"}
"""The quickstart as it is, for a chain of sixty blocks."""
TRANSFER = "ddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"


async def runs_through_reorgs(rig: Rig, node: Any, reorg: Callable[[int], None]) -> None:
    """`node` has thirty blocks."""
    await rig.deploy(_smaller(_without_alerts(quickstart())))
    async with working(rig.worker()):
        await rig.trigger(DAG, "backfill", 0, PAST - 1)
        version = await rig.version(DAG, "follow")
        await rig.until_followed(version)
        for depth in (1, 5, 14):  # the last goes deeper than what the node called final
            reorg(depth)
            await rig.until_followed(version)
            node.mine(4)
            await rig.until_followed(version)
        node.mine(15)
        await rig.until_followed(version)
        await rig.settled()
        await rig.until_equal(lambda: equal(rig, node))
    assert await rig.failures() == []


async def equal(rig: Rig, node: Any) -> None:
    head = node.describe()["head"]
    for output, table in enumerate(ALL):
        past = await rig.cold(DAG, "ingest", output)
        assert past is not None
        assert rows_of(past, table) == truth(rig.devchain, table, 0, PAST - 1), table
        assert await rig.seam(DAG, "follow", "compact", output, table) == truth(rig.devchain, table, PAST, head), table
    recent = await rig.cold(DAG, "compact", ALL.index("blocks"))
    assert recent is not None
    cold_to = max(recent["block_number"].to_pylist())
    assert cold_to >= PAST + 19
    decoded = await rig.cold(DAG, "decode")
    assert decoded is not None
    found = [(row["block_number"], row["log_index"], row["value_decimal"]) for row in decoded.to_pylist()]
    assert sorted(found) == transfers(rig, cold_to)


def transfers(rig: Rig, end: int) -> list[tuple[int, int, int]]:
    return [
        (row["block_number"], row["log_index"], int.from_bytes(row["data"], "big"))
        for row in truth(rig.devchain, "logs", 0, end)
        if row["topic0"] is not None and row["topic0"].hex() == TRANSFER and row["topic3"] is None
    ]


def _without_alerts(text: str) -> str:
    """Without what needs a sandbox and a Query service; `tests/runner` and the demo run that."""
    job, begins = text.index("  # --- what people should know of"), text.index("publish:")
    text = text[:job] + text[begins:]
    return text[: text.index("  alert_events:")]


def _smaller(text: str) -> str:
    for large, small in SMALLER.items():
        assert large in text
        text = text.replace(large, small)
    return text
