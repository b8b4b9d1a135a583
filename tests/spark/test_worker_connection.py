"""A Python worker's connections to the data database. 5 s."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tracelake.data.postgres.secret_dsn import SecretDsn
from tracelake.data.postgres.worker_connection import driver_errors, open_session, run
from tracelake.errors import DatabaseUnavailable


def test_a_server_that_was_away_once_is_there_again_for_those_who_ask_later(data_db: str) -> None:
    ask(data_db)
    let_in(data_db, allowed=False)
    for _ in range(3):
        with pytest.raises(DatabaseUnavailable):
            ask(data_db)
    let_in(data_db, allowed=True)
    for _ in range(3):
        ask(data_db)


def ask(dsn: str) -> None:
    secret = SecretDsn(dsn)
    with driver_errors(secret, "read"), open_session(secret) as connection:
        run(connection, "SELECT 1")


def let_in(dsn: str, *, allowed: bool) -> None:
    name = str(conninfo_to_dict(dsn)["dbname"])
    with psycopg.connect(make_conninfo(dsn, dbname="postgres"), autocommit=True) as connection:
        word = sql.SQL("true" if allowed else "false")
        connection.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS {}").format(sql.Identifier(name), word))
