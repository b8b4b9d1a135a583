"""Creates or migrates databases, schemas and roles before any process connects."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import SecretStr

from tracelake.lite.postgres import SUPERUSER, Cluster
from tracelake.settings import Settings
from tracelake.store.first_start import LocalToken, ensure_first_rows
from tracelake.store.migrate import Database, migrate
from tracelake.store.roles import ensure_databases, ensure_roles


@dataclass(frozen=True)
class Dsns:
    """The DSN of each kind of process. Passwords are made at each start and kept in memory only."""

    state: str
    data: str
    query: str
    queue: str
    delivery: str


@dataclass(frozen=True)
class ExternalDsns:
    """DSNs from settings; each replaces an embedded server."""

    state: str | None
    data: str | None
    query: str | None
    queue: str | None
    delivery: str | None = None
    queue_is_sqs: bool = False
    """No database holds the queue."""

    @classmethod
    def of(cls, settings: Settings) -> ExternalDsns:
        def plain(secret: SecretStr | None) -> str | None:
            return secret.get_secret_value() if secret else None

        return cls(
            state=plain(settings.state.dsn),
            data=plain(settings.data.dsn),
            delivery=plain(settings.data.delivery_dsn),
            query=plain(settings.data.query_dsn),
            queue=plain(settings.queue.dsn),
            queue_is_sqs=settings.queue.backend == "sqs",
        )

    @property
    def embeds_state(self) -> bool:
        return self.state is None

    @property
    def embeds_data(self) -> bool:
        return self.data is None or (self.queue is None and not self.queue_is_sqs)


@dataclass(frozen=True)
class Embedded:
    """A running embedded server, and the superuser's password of this start."""

    cluster: Cluster
    password: str

    def admin(self, database: str = "postgres") -> str:
        return self.cluster.dsn(database, SUPERUSER, self.password)


def new_passwords() -> dict[str, str]:
    """Of every role, new at each start."""
    return {role: secrets.token_urlsafe(32) for role in ("dispatcher", "worker", "query", "queue", "delivery")}


def owner_dsns(external: ExternalDsns, state: Embedded | None, data: Embedded | None) -> Mapping[Database, str]:
    """DSNs with every right on the three databases, in the order in which they are copied; none for a queue on SQS."""
    queue = data.admin("queue") if data and not external.queue_is_sqs else ""
    return {
        "state": external.state or (state.admin("state") if state else ""),
        "data": external.data or (data.admin("data") if data else ""),
        "queue": external.queue or queue,
    }


def provision(
    external: ExternalDsns,
    state: Embedded | None,
    data: Embedded | None,
    *,
    passwords: Mapping[str, str],
    tokens: Sequence[LocalToken],
) -> None:
    """Idempotent: an up-to-date database is not changed; roles get these passwords."""
    if state is not None:
        ensure_databases(state.admin(), "state")
        migrate(state.admin("state"), "state")
        ensure_roles(state.admin(), "state", {"dispatcher": passwords["dispatcher"]})
    if data is not None:
        ensure_databases(data.admin(), "data")
        migrate(data.admin("data"), "data")
        migrate(data.admin("queue"), "queue")
        ensure_roles(data.admin(), "data", {role: passwords[role] for role in ("worker", "query", "queue", "delivery")})
    outside: Mapping[Database, str | None] = {"state": external.state, "data": external.data, "queue": external.queue}
    for database, dsn in outside.items():
        if dsn is not None:
            migrate(dsn, database)
    ensure_first_rows(state.admin("state") if state else external.state or "", tokens)


def dsns_of(external: ExternalDsns, state: Cluster | None, data: Cluster | None, passwords: Mapping[str, str]) -> Dsns:
    """Known before the servers start, so that processes can start at the same time."""

    def embedded(server: Cluster | None, database: str, role: str) -> str:
        return server.dsn(database, role, passwords[role]) if server else ""

    return Dsns(
        state=external.state or embedded(state, "state", "dispatcher"),
        data=external.data or embedded(data, "data", "worker"),
        # An external database without a reading role is read through its main DSN.
        query=external.query or external.data or embedded(data, "data", "query"),
        queue=external.queue or embedded(data, "queue", "queue"),
        delivery=external.delivery or external.data or embedded(data, "data", "delivery"),
    )
