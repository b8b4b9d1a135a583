"""A Python worker's connection to the data database, by ADBC, and its errors without anything of the DSN."""

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
"""Classes of SQL states that say that a value or a statement was wrong, and not that the server was away."""
_TURN: Final = threading.Lock()
"""The driver counts a database's connections without a lock of its own: two threads that open and close at once can
make it lose count, and from then on it refuses every connection."""


@contextmanager
def open_session(dsn: SecretDsn) -> Iterator[Any]:
    from adbc_driver_manager import AdbcConnection
    from adbc_driver_manager.dbapi import Connection

    with _TURN:
        connection = Connection(_KeptDatabase(), AdbcConnection(_database(dsn.reveal())))  # type: ignore[arg-type]
    try:
        # Literals rely on the first; by the second, timestamps do not depend on the server's place.
        run(connection, "SET standard_conforming_strings = on")
        run(connection, "SET timezone = 'UTC'")
        connection.commit()
        yield connection
    finally:
        with _TURN:
            try:
                connection.close()
            except driver_error():  # all was said before; whoever comes next begins with a database that can count
                _database.cache_clear()


@lru_cache(maxsize=8)
def _database(dsn: str) -> Any:
    """ADBC reads the server's whole catalogue of types to make one, which takes far longer than to connect."""
    import adbc_driver_postgresql

    return adbc_driver_postgresql.connect(dsn)


class _KeptDatabase:
    """What a connection is given to close when it ends: the database stays, for the next."""

    def close(self) -> None:
        pass


def run(connection: Any, statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


@contextmanager
def driver_errors(dsn: SecretDsn, verb: str) -> Iterator[None]:
    """Each as one sentence of ours."""
    try:
        yield
    except driver_error() as wrong:
        said = dsn.redact(" ".join(str(wrong).split()))
        kind = BadInput if (getattr(wrong, "sqlstate", None) or "")[:2] in OURS else DatabaseUnavailable
        raise kind(f"Postgres refused a {verb}: {said}") from None
    except pa.ArrowInvalid as wrong:
        raise BadInput(f"a value does not fit its column: {dsn.redact(str(wrong))}") from None


def driver_error() -> type[Exception]:
    from adbc_driver_manager import Error

    return Error
