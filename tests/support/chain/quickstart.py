"""The quickstart DAG on a small chain: backfill, follow, reorgs, compact, decode; then every row is compared."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from tests.support.systems.chain import ChainSystem, rows_of, truth
from tests.support.systems.walk import working
from tracelake.operators.helpers.chain_tables import ALL
from tracelake_demo.run import quickstart

PAST, PIECE = 20, 10
DAG = "evm_quickstart"
SMALLER = {
    "chunk: 2000": f"chunk: {PIECE}",
    "2000": str(PAST),
    "size: 50": "size: 20",
    "grace_seconds: 5": "grace_seconds: 0",
}
"""The quickstart as it is, for a chain of sixty blocks."""
TRANSFER = "ddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"


async def runs_through_reorgs(system: ChainSystem, node: Any, reorg: Callable[[int], None]) -> None:
    """`node` has thirty blocks."""
    await system.deploy(_smaller(_without_alerts(quickstart())))
    async with working(system.worker()):
        await system.trigger(DAG, "backfill", 0, PAST - 1)
        version = await system.version(DAG, "follow")
        await system.until_followed(version)
        for depth in (1, 5, 14):  # the last goes deeper than what the node called final
            reorg(depth)
            await system.until_followed(version)
            node.mine(4)
            await system.until_followed(version)
        node.mine(15)
        await system.until_followed(version)
        await system.settled()
        await system.until_equal(lambda: equal(system, node))
    assert await system.failures() == []


async def equal(system: ChainSystem, node: Any) -> None:
    head = node.describe()["head"]
    for output, table in enumerate(ALL):
        past = await system.cold(DAG, "ingest", output)
        assert past is not None
        assert rows_of(past, table) == truth(system.devchain, table, 0, PAST - 1), table
        assert await system.current_rows(DAG, "follow", "compact", output, table) == truth(
            system.devchain, table, PAST, head
        ), table
    recent = await system.cold(DAG, "compact", ALL.index("blocks"))
    assert recent is not None
    cold_to = max(recent["block_number"].to_pylist())
    assert cold_to >= PAST + 19
    decoded = await system.cold(DAG, "decode")
    assert decoded is not None
    found = [(row["block_number"], row["log_index"], row["value_decimal"]) for row in decoded.to_pylist()]
    assert sorted(found) == transfers(system, cold_to)
    await summed_up(system, cold_to)
    await checked(system)


async def summed_up(system: ChainSystem, end: int) -> None:
    """By day and token, counted once more on the chain itself."""
    expected: dict[Any, list[int]] = {}
    for row in _transfer_logs(system, end):
        day = datetime.fromtimestamp(row["timestamp"], UTC).date()
        expected.setdefault((day, row["address"]), []).append(int.from_bytes(row["data"], "big"))
    daily = await system.cold(DAG, "daily")
    assert daily is not None
    found = {(row["day"], row["token"]): (row["transfers"], row["amount"]) for row in daily.to_pylist()}
    assert len(found) == daily.num_rows
    assert found == {key: (len(amounts), sum(amounts)) for key, amounts in expected.items()}


async def checked(system: ChainSystem) -> None:
    """Each piece of the backfill, by each of the three checks, and all of them held."""
    report = await system.cold(DAG, "blocks_checked")
    assert report is not None
    held = [(row["start"], row["end"], row["check"].split()[0], row["passed"]) for row in report.to_pylist()]
    pieces = [(start, start + PIECE - 1) for start in range(0, PAST, PIECE)]
    assert sorted(held) == sorted(
        (*piece, kind, True) for piece in pieces for kind in ("not_null", "unique", "continuous")
    )


def transfers(system: ChainSystem, end: int) -> list[tuple[int, int, int]]:
    return [
        (row["block_number"], row["log_index"], int.from_bytes(row["data"], "big"))
        for row in _transfer_logs(system, end)
    ]


def _transfer_logs(system: ChainSystem, end: int) -> list[dict[str, Any]]:
    return [
        row
        for row in truth(system.devchain, "logs", 0, end)
        if row["topic0"] is not None and row["topic0"].hex() == TRANSFER and row["topic3"] is None
    ]


def _without_alerts(text: str) -> str:
    """Without what needs a sandbox and a Query service: `tests/lite/test_demo.py` runs that, with `alerts.yaml`."""
    job, begins = text.index("  # --- what people should know of"), text.index("publish:")
    text = text[:job] + text[begins:]
    return text[: text.index("  alert_events:")]


def _smaller(text: str) -> str:
    for large, small in SMALLER.items():
        assert large in text
        text = text.replace(large, small)
    return text
