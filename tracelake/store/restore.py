"""Starts an epoch in a state database that was loaded from a backup.

What was issued after the backup was made is unknown to the database, and may still be in use: tokens, leases, numbers
of attempts and commits. In one transaction this makes sure that none of it is ever accepted, or issued a second time.
"""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from tracelake.store.migrate import connect, refusals
from tracelake.store.queries import queries

STEPS = (
    "delete_signing_keys",
    "end_attempts",
    "replace_leases",
    "renumber_queued",
    "wake_queued",
    "release_outbox",
)


def start_epoch(dsn: str, epoch: int, backup_id: UUID, backed_up_at: datetime) -> None:
    sql = queries("restore")
    with refusals(dsn, "state"), connect(dsn) as connection, connection.transaction():
        connection.execute(sql["insert_restore"].encode(), (epoch, backup_id, backed_up_at))
        for step in STEPS:
            connection.execute(sql[step].encode(), ())
