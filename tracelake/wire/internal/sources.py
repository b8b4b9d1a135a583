"""Messages of the scheduler and of senders of webhooks."""

from __future__ import annotations

from typing import Annotated, Final
from uuid import UUID

from msgspec import Meta

from tracelake.wire.message import Message


class FiredAnswer(Message, frozen=True):
    """What was decided, and when to call again."""

    fired: int
    decided: int
    """Slots: those that fired, and those that did not, for a reason."""
    next_in_seconds: float | None
    """None: no schedule has another slot."""
    mark: str
    """To wait for changes of schedules from here on."""


class HookAnswer(Message, frozen=True):
    """To the sender of a webhook: it is stored. The same for the same delivery."""

    delivery_id: UUID


MAX_HOOKS: Final = 16
"""Calls to webhooks that the Gateway forwards together: they fit into one body, however large each is."""
MAX_HOOKS_BODY: Final = 24 * 1024 * 1024


class HookItem(Message, frozen=True):
    """A call to a webhook source as the Gateway received it."""

    org: str
    dag: str
    job: str
    headers: dict[str, str]
    """Those that schemes sign with, by their names in lower case."""
    body: bytes
    """In base64."""


class HookBatchRequest(Message, frozen=True):
    items: Annotated[list[HookItem], Meta(min_length=1, max_length=MAX_HOOKS)]


class HookOutcome(Message, frozen=True):
    """Of one call: the delivery, or why it was not accepted."""

    delivery_id: UUID | None = None
    code: str | None = None
    message: str | None = None
    retry_after: int | None = None


class HookBatchAnswer(Message, frozen=True):
    outcomes: list[HookOutcome]
    """In the order of the items."""
