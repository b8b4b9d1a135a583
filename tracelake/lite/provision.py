"""Databases, schemas and roles, made or brought up to date before any process of ours connects."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from tracelake.lite.postgres import SUPERUSER, Cluster
from tracelake.store.first_start import ensure_first_rows
from tracelake.store.migrate import Database, migrate
from tracelake.store.roles import ensure_databases, ensure_roles


@dataclass(frozen=True)
class Dsns:
    """What each kind of process connects with. The passwords are made at each start and live in memory only."""

    state: str
    data: str
    query: str
    queue: str
    delivery: str


@dataclass(frozen=True)
class Given:
    """DSNs from settings; each replaces what the embedded servers would have given."""

    state: str | None
    data: str | None
    query: str | None
    queue: str | None
    delivery: str | None = None

    @property
    def embeds_state(self) -> bool:
        return self.state is None

    @property
    def embeds_data(self) -> bool:
        return self.data is None or self.queue is None


@dataclass(frozen=True)
class Embedded:
    """A running embedded server, and the superuser's password of this start."""

    cluster: Cluster
    password: str

    def admin(self, database: str = "postgres") -> str:
        return self.cluster.dsn(database, SUPERUSER, self.password)


def new_passwords() -> dict[str, str]:
    """Of every role; new at each start."""
    return {role: secrets.token_urlsafe(32) for role in ("dispatcher", "worker", "query", "queue", "delivery")}


def provision(
    given: Given,
    state: Embedded | None,
    data: Embedded | None,
    *,
    words: Mapping[str, str],
    worker_token: str,
) -> None:
    """Idempotent: a database that is as it should be is left alone; roles get these passwords."""
    if state is not None:
        ensure_databases(state.admin(), "state")
        migrate(state.admin("state"), "state")
        ensure_roles(state.admin(), "state", {"dispatcher": words["dispatcher"]})
    if data is not None:
        ensure_databases(data.admin(), "data")
        migrate(data.admin("data"), "data")
        migrate(data.admin("queue"), "queue")
        ensure_roles(data.admin(), "data", {role: words[role] for role in ("worker", "query", "queue", "delivery")})
    outside: Mapping[Database, str | None] = {"state": given.state, "data": given.data, "queue": given.queue}
    for database, dsn in outside.items():
        if dsn is not None:
            migrate(dsn, database)
    ensure_first_rows(state.admin("state") if state else given.state or "", worker_token)


def dsns_of(given: Given, state: Cluster | None, data: Cluster | None, words: Mapping[str, str]) -> Dsns:
    """Known before there is any server: who needs none at first may start with them."""

    def embedded(server: Cluster | None, database: str, role: str) -> str:
        return server.dsn(database, role, words[role]) if server else ""

    return Dsns(
        state=given.state or embedded(state, "state", "dispatcher"),
        data=given.data or embedded(data, "data", "worker"),
        # Without a reading role of its own, an outside database is read through the DSN it was given with.
        query=given.query or given.data or embedded(data, "data", "query"),
        queue=given.queue or embedded(data, "queue", "queue"),
        delivery=given.delivery or given.data or embedded(data, "data", "delivery"),
    )
