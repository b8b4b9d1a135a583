"""A Python worker's connection to data Postgres, by ADBC, and its errors without the DSN."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

from tracelake.data.postgres.secret_dsn import SecretDsn
from tracelake.errors import BadInput, DatabaseUnavailable

OURS: Final = ("22", "23", "42")
"""Classes of SQL states for a wrong value or statement, not an unavailable server."""
_TURN: Final = threading.Lock()
"""The driver counts a database's connections without a lock: two threads that open and close at once can break the
count, and from then on it refuses every connection."""


@contextmanager
def open_session(dsn: SecretDsn) -> Iterator[Any]:
    from adbc_driver_manager import AdbcConnection
    from adbc_driver_manager.dbapi import Connection

    with _TURN:
        connection = Connection(_KeptDatabase(), AdbcConnection(_database(dsn.reveal())))  # type: ignore[arg-type]
    try:
        # Literals need the first; with the second, timestamps do not depend on the server's zone.
        run(connection, "SET standard_conforming_strings = on")
        run(connection, "SET timezone = 'UTC'")
        connection.commit()
        yield connection
    finally:
        with _TURN:
            try:
                connection.close()
            except driver_error():  # the error was raised before; the next caller opens a new database
                _database.cache_clear()


@lru_cache(maxsize=8)
def _database(dsn: str) -> Any:
    """ADBC reads the server's whole catalogue of types to open a database, which takes far longer than to connect."""
    import adbc_driver_postgresql

    return adbc_driver_postgresql.connect(dsn)


class _KeptDatabase:
    """Closed with the connection instead of the database, which stays open for the next."""

    def close(self) -> None:
        pass


def run(connection: Any, statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


@contextmanager
def driver_errors(dsn: SecretDsn, verb: str) -> Iterator[None]:
    """Raise each as an error of one sentence."""
    try:
        yield
    except driver_error() as error:
        message = dsn.redact(" ".join(str(error).split()))
        kind = BadInput if (getattr(error, "sqlstate", None) or "")[:2] in OURS else DatabaseUnavailable
        raise kind(f"Postgres refused a {verb}: {message}") from None
    except pa.ArrowInvalid as error:
        raise BadInput(f"a value does not fit its column: {dsn.redact(str(error))}") from None


def driver_error() -> type[Exception]:
    from adbc_driver_manager import Error

    return Error
