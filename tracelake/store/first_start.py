"""Inserts the first rows of a new system: organisation `default`, its administrator, this machine's worker token."""

from __future__ import annotations

import psycopg

from tracelake.store.identity import hash_token
from tracelake.store.queries import queries

FIRST_ADMIN = "local|admin"


def ensure_first_rows(state_dsn: str, worker_token: str) -> None:
    """Rows that exist are left as they are."""
    sql = queries("first_start")
    with psycopg.connect(state_dsn) as connection:
        ((org_id,),) = connection.execute(sql["ensure_org"].encode()).fetchall()
        connection.execute(sql["ensure_admin"].encode(), (org_id, "admin@localhost", FIRST_ADMIN))
        connection.execute(sql["ensure_worker_token"].encode(), ("lite", hash_token(worker_token)))
