"""What the demo's code raised, held against the chain: each large transfer once, whatever happened."""

from __future__ import annotations

from dataclasses import dataclass

from trace_platform.chain.devchain.chain import Chain
from trace_platform.chain.devchain.truth import truth_table
from trace_platform.lite.demo_hook import Hook
from trace_platform.lite.demo_system import Running

LEAST = 10**18
"""As `large_transfers/main.py` has it."""
TRANSFER = bytes.fromhex("ddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef")
ALERTS = "SELECT dedupe_key, severity, block_number, tx_hash, payload FROM alert_events"


@dataclass(frozen=True)
class Raised:
    rows: int
    keys: int
    """Different events among the rows: as many."""
    critical: int
    missing: int
    """Large transfers of the chain, as it is now, of which nobody was told."""
    orphaned: int
    """Of blocks that a reorg took away: they were there when they were told of."""
    delivered: int
    doubled: int
    """Events of which the receiver was told under more than one id; must be none."""

    @property
    def all_told(self) -> bool:
        return bool(self.critical) and not self.missing and self.delivered == self.critical


def raised(system: Running, chain: Chain, hook: Hook, start: int, end: int) -> Raised:
    rows = system.query(ALERTS) if _is_there(system) else []
    keys = {row["dedupe_key"] for row in rows}
    expected = large_transfers(chain, start, end)
    told = {(one["delivery_id"], one["event"]["dedupe_key"]) for one in hook.told}
    critical = {row["dedupe_key"] for row in rows if row["severity"] == "critical"}
    return Raised(
        rows=len(rows),
        keys=len(keys),
        critical=len(critical),
        missing=len(expected - keys),
        orphaned=len(keys - expected),
        delivered=len({key for _, key in told} & critical),
        doubled=len(told) - len({key for _, key in told}),
    )


def _is_there(system: Running) -> bool:
    """Whether the sink has written the first of them."""
    return bool(system.get("/v1/datasets/alert_events").json()["last_commit"])


def large_transfers(chain: Chain, start: int, end: int) -> set[str]:
    """By their keys, counted on the chain itself."""
    table = truth_table(chain, "logs", start, end)
    found, nth = set(), dict[bytes, int]()
    for row in table.sort_by([("block_number", "ascending"), ("log_index", "ascending")]).to_pylist():
        if row["topic0"] != TRANSFER or row["topic3"] is not None:
            continue
        tx = row["transaction_hash"]
        nth[tx] = nth.get(tx, 0) + 1
        if int.from_bytes(row["data"], "big") >= LEAST:
            found.add(f"{row['chain_id']}:0x{tx.hex()}:{nth[tx]}")
    return found
