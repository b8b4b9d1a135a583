"""Messages of the user API about the outbox."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import Meta

from tracelake.wire.message import Message
from tracelake.wire.user.fields import Limit, RowId

OutboxStatus = Literal["Pending", "Processing", "Failed"]


class OutboxQuery(Message, frozen=True):
    status: OutboxStatus | None = None
    before: RowId | None = None
    limit: Limit = 50


class OutboxRow(Message, frozen=True):
    id: int
    kind: str
    status: OutboxStatus
    attempts: int
    payload: Any
    last_error: str | None
    created_at: datetime
    available_at: datetime


class OutboxList(Message, frozen=True):
    rows: list[OutboxRow]
    next: int | None


class OutboxRetryRequest(Message, frozen=True):
    ids: Annotated[list[RowId], Meta(min_length=1, max_length=10_000)] | None = None
    """None: all that were given up."""


class OutboxRetryAnswer(Message, frozen=True):
    retried: list[int]
