"""Compares the demo's alerts with the chain: each large transfer once, whatever happened."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tracelake_demo.receiver import Hook
from tracelake_demo.system import Running
from tracelake_devchain.build_block import Made
from tracelake_devchain.chain import Chain

LEAST, CRITICAL = 10**18, 10**21
"""The same as in `large_transfers/main.py`."""
TRANSFER = "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"
ALERTS = "SELECT dedupe_key, severity, block_number, block_hash, payload FROM alert_events"


@dataclass(frozen=True)
class Raised:
    rows: int
    keys: int
    """Number of different events; equal to `rows`."""
    critical: int
    missing: int
    """Large transfers of the current chain without an alert."""
    orphaned: int
    """Alerts of blocks that a reorg replaced later."""
    false: list[str]
    """Keys of alerts for transfers that no block ever had; must be empty."""
    delivered: int
    doubled: int
    """Events that the receiver got under more than one id; must be empty."""

    @property
    def all_received(self) -> bool:
        return bool(self.critical) and not self.missing and self.delivered == self.critical


def raised(system: Running, chain: Chain, hook: Hook, start: int, end: int) -> Raised:
    rows = system.query(ALERTS) if _is_there(system) else []
    events = [(item["delivery_id"], item["event"]["dedupe_key"]) for item in hook.deliveries]
    return judged(rows, events, chain, start, end)


def judged(rows: list[dict[str, Any]], events: list[tuple[str, str]], chain: Chain, start: int, end: int) -> Raised:
    for number, branch in enumerate(chain.branches):
        chain.of_branch(number, branch.head)  # with the blocks that a reorg replaced
    expected = large_transfers(chain, start, end)
    critical = {row["dedupe_key"] for row in rows if row["severity"] == "critical"}
    keys = {row["dedupe_key"] for row in rows}
    others = [row for row in rows if row["dedupe_key"] not in expected]
    orphans = [row for row in others if _is_orphan(chain, row)]
    false = [row["dedupe_key"] for row in others if row not in orphans]
    false += [row["dedupe_key"] for row in rows if row["dedupe_key"] in expected and not _is_true(row, expected)]
    false += sorted({key for _, key in events} - keys)
    different = {key for _, key in events}
    return Raised(
        rows=len(rows),
        keys=len(keys),
        critical=len(critical),
        missing=len(expected.keys() - keys),
        orphaned=len(orphans),
        false=false,
        delivered=len(different & critical),
        doubled=len(set(events)) - len(different),
    )


def _is_there(system: Running) -> bool:
    """Whether the sink has written an alert yet."""
    return bool(system.get("/v1/datasets/alert_events").json()["last_commit"])


def large_transfers(chain: Chain, start: int, end: int) -> dict[str, int]:
    """Amounts by key, computed from the chain."""
    found: dict[str, int] = {}
    for made in chain.blocks(start, end):
        found |= _large_in(chain, made)
    return found


def _large_in(chain: Chain, made: Made) -> dict[str, int]:
    found, nth = dict[str, int](), dict[str, int]()
    for log in made.logs:
        if log.topics[:1] != [TRANSFER] or len(log.topics) > 3:  # noqa: PLR2004 - a fourth topic is ERC-721's
            continue
        tx = str(log.transaction_hash)
        nth[tx] = nth.get(tx, 0) + 1
        amount = int(log.data, 16)
        if amount >= LEAST:
            found[f"{chain.chain_id}:{tx}:{nth[tx]}"] = amount
    return found


def _is_orphan(chain: Chain, row: Mapping[str, Any]) -> bool:
    """Whether it is a large transfer of a block that was replaced."""
    made = chain.by_hash(row["block_hash"])
    if made is None or (made.number <= chain.head and chain.block(made.number).hash == made.hash):
        return False
    return made.number == row["block_number"] and _is_true(row, _large_in(chain, made))


def _is_true(row: Mapping[str, Any], amounts: Mapping[str, int]) -> bool:
    amount = amounts.get(row["dedupe_key"])
    if amount is None:
        return False
    is_critical = bool(row["severity"] == "critical")
    return bool(json.loads(row["payload"])["amount"] == str(amount)) and is_critical == (amount >= CRITICAL)
