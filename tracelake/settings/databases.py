"""Settings of the databases and of the queue."""

from __future__ import annotations

from typing import Any

from pydantic import SecretStr

from tracelake.settings.base import Group, setting


def _dsn(why: str) -> Any:
    return setting(None, why, unit="postgresql:// URL")


class StateSettings(Group):
    """The control plane's database. Only the Dispatcher has it."""

    dsn: SecretStr | None = _dsn("A server of yours in place of the embedded one; it must own the database it names.")
    pool_max: int = setting(
        8, "Connections a Dispatcher keeps; two cores saturate at about 8.", unit="count", ge=1, le=200
    )
    acquire_seconds: float = setting(
        10.0, "How long a call waits for a free connection; then it is refused with a 503.", unit="s", gt=0, le=300
    )
    stuck_seconds: float = setting(
        60.0,
        "A Dispatcher whose connections are all held for so long without a statement, though Postgres answers, ends "
        "itself to be restarted.",
        unit="s",
        ge=1,
    )


class DataSettings(Group):
    """The data plane's database: hot tables and buffered datasets."""

    dsn: SecretStr | None = _dsn("A server of yours in place of the embedded one, with the right to write.")
    query_dsn: SecretStr | None = _dsn("The same database through a role that can only read, for the Query service.")
    delivery_dsn: SecretStr | None = _dsn("The same database through a role that sees deliveries alone, to send them.")


class QueueSettings(Group):
    """The Lite queue's database."""

    dsn: SecretStr | None = _dsn("A queue database of yours in place of the embedded one.")
