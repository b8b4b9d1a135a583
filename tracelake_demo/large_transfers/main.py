"""Raises one alert for each large token transfer, also when blocks are retried or replaced by a reorg.

It runs in a sandbox for each range of blocks that the follower writes, and again for each range that a reorg replaces.
The alert's parameters: `least` is the minimum amount, `critical` the amount from which it is more than a warning.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from trace_udf import Alert, Task, udf

LARGE = {"least": 10**18, "critical": 10**21}
"""Defaults for the alert's parameters."""
TRANSFER = "ddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"
"""Topic of ERC-20's Transfer event. ERC-721's is the same, with a fourth topic."""

# A transfer has the same position in its transaction in every branch, but maybe not in its block.
TRANSFERS = """
    SELECT chain_id, block_number, block_hash, transaction_hash, timestamp, address, topic1, topic2, data,
           row_number() OVER (PARTITION BY transaction_hash ORDER BY log_index) AS nth
      FROM logs
     WHERE block_number BETWEEN {start} AND {end} AND topic0 = X'{topic}' AND topic3 IS NULL
"""


@udf
def handler(task: Task) -> None:
    found = 0
    for alert in task.alerts:
        least, critical = (int(alert.params.get(name, usual)) for name, usual in LARGE.items())
        for row in task.query(TRANSFERS.format(topic=TRANSFER, start=task.scope["start"], end=task.scope["end"])):
            amount = int(row["data"], 16)
            if amount >= least:
                found += 1
                say(task, alert, row, amount, "critical" if amount >= critical else alert.severity)
    task.log.info("%d large transfers in blocks %d to %d", found, task.scope["start"], task.scope["end"])


def say(task: Task, alert: Alert, row: dict[str, Any], amount: int, severity: str) -> None:
    task.alert(
        alert,
        dedupe_key=f"{row['chain_id']}:{row['transaction_hash']}:{row['nth']}",
        event_time=datetime.fromtimestamp(row["timestamp"], UTC),
        chain_id=row["chain_id"],
        block_number=row["block_number"],
        block_hash=row["block_hash"],
        tx_hash=row["transaction_hash"],
        severity=severity,
        payload={
            "token": row["address"],
            "from": "0x" + row["topic1"][-40:],
            "to": "0x" + row["topic2"][-40:],
            "amount": str(amount),
        },
    )
