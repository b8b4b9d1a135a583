"""What a new system begins with: organisation `default`, its administrator, this machine's worker token."""

from __future__ import annotations

import psycopg

from tracelake.store.identity import hash_token
from tracelake.store.queries import queries

FIRST_ADMIN = "local|admin"


def ensure_first_rows(state_dsn: str, worker_token: str) -> None:
    """Does nothing that was done before."""
    sql = queries("first_start")
    with psycopg.connect(state_dsn) as connection:
        found = connection.execute(sql["ensure_org"].encode()).fetchone()
        assert found is not None  # noqa: S101 - RETURNING after an upsert always has its row
        connection.execute(sql["ensure_admin"].encode(), (found[0], FIRST_ADMIN, "admin@localhost"))
        connection.execute(sql["ensure_worker_token"].encode(), ("lite", hash_token(worker_token)))
