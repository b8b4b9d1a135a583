"""Inserts the first rows of a new system: organisation `default`, its administrator, the tokens of this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from tracelake.domain.access.service_tokens import ANY_LISTENER, token_hashes
from tracelake.store.queries import queries

FIRST_ADMIN = "local|admin"


@dataclass(frozen=True)
class LocalToken:
    """The token of a service, as a file of this machine has it."""

    service: str
    token: str
    replace: Callable[[], str]
    """Writes a new token into the file, because the one there no longer holds."""
    runtimes: Sequence[str] | None = None


def ensure_first_rows(state_dsn: str, tokens: Sequence[LocalToken]) -> None:
    """Rows that exist are left as they are, but that a token claims for the runtimes of this start."""
    sql = queries("first_start")
    with psycopg.connect(state_dsn) as connection:
        ((org_id,),) = connection.execute(sql["ensure_org"].encode()).fetchall()
        connection.execute(sql["ensure_admin"].encode(), (org_id, "admin@localhost", FIRST_ADMIN))
        for token in tokens:
            _ensure_token(connection, token)


def _ensure_token(connection: psycopg.Connection[Any], token: LocalToken) -> None:
    sql, runtimes = queries("first_start"), list(token.runtimes) if token.runtimes is not None else None
    shown = token_hashes(token.token)[ANY_LISTENER]
    found = connection.execute(sql["find_service_token"].encode(), (shown,)).fetchone()
    if found is not None and found[1]:
        connection.execute(sql["set_runtimes"].encode(), (runtimes, found[0]))
        return
    # A token that was revoked is not made valid again.
    hashes = token_hashes(token.token if found is None else token.replace())
    name = f"trace_up_{hashes[ANY_LISTENER].hex()[:12]}"
    values = token.service, name, runtimes
    ((token_id,),) = connection.execute(sql["insert_service_token"].encode(), values).fetchall()
    for listener, hashed in hashes.items():
        connection.execute(sql["insert_service_token_hash"].encode(), (token_id, listener, hashed))
