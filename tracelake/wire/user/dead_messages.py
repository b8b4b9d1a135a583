"""Messages of the user API about messages of the queues that were given up."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Final

from msgspec import Meta

from tracelake.wire.message import Message
from tracelake.wire.user.fields import Limit

QUEUE_NAME: Final = "[A-Za-z0-9_-]{1,80}"
QueueName = Annotated[str, Meta(pattern=f"^{QUEUE_NAME}$")]
MessageName = Annotated[str, Meta(min_length=1, max_length=200, pattern="^[^\\x00]*$")]


class DeadMessagesQuery(Message, frozen=True):
    queue: QueueName | None = None
    """None: all of them."""
    limit: Limit = 50
    """Of each queue."""


class DeadMessage(Message, frozen=True):
    queue: str
    id: str
    deliveries: int
    sent_at: datetime
    died_at: datetime
    reason: str
    size_bytes: int
    message: str
    """How it begins; what is not UTF-8 is replaced."""


class DeadMessages(Message, frozen=True):
    messages: Sequence[DeadMessage]


class RedriveRequest(Message, frozen=True):
    ids: Annotated[list[MessageName], Meta(min_length=1, max_length=10_000)] | None = None
    """None: all of them."""


class RedriveAnswer(Message, frozen=True):
    redriven: int
