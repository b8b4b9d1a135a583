"""Adds work items for the delivery process, once each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import psycopg

from tracelake.data.statements import statements
from tracelake.errors import DatabaseUnavailable


@dataclass(frozen=True)
class Item:
    """An alert event for one channel."""

    id: UUID
    alert_definition_id: UUID
    alert_name: str
    dedupe_key: str
    channel: str
    severity: str
    event_time: datetime
    event: str
    """The JSON to send."""


def store_items(dsn: str, org_id: UUID, task_id: UUID, items: Sequence[Item]) -> int:
    """Add all items or none; return how many were new. The organisation is the task's, never a value of a row."""
    values = {
        "org": org_id,
        "task": task_id,
        "ids": [item.id for item in items],
        "alerts": [item.alert_definition_id for item in items],
        "names": [item.alert_name for item in items],
        "keys": [item.dedupe_key for item in items],
        "channels": [item.channel for item in items],
        "severities": [item.severity for item in items],
        "times": [item.event_time for item in items],
        "events": [item.event for item in items],
    }
    try:
        with psycopg.connect(dsn, autocommit=True, connect_timeout=10) as connection:
            return connection.execute(statements("deliveries")["add_items"], values).rowcount
    except psycopg.OperationalError as error:
        raise DatabaseUnavailable(f"data Postgres does not answer: {type(error).__name__}") from None
