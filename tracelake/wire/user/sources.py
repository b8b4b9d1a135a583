"""Messages of the user API about sources: schedules, webhooks, and what fired them."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from tracelake.wire.message import Message
from tracelake.wire.user.fields import Limit, Name, RowId


class SourcesQuery(Message, frozen=True):
    dag: Name | None = None


class SourceRow(Message, frozen=True, kw_only=True):
    """A source of the active version of its DAG."""

    dag: str
    job: str
    kind: str
    operator: str
    runtime: str
    ready: bool
    """False: it cannot fire; `not_ready` says why."""
    not_ready: str | None
    paused: bool
    pause_reason: str | None
    """`manual`: by a user; `failure`: after a task failed (`pause_on_failure`); `depth`, `age`: a queue is too long."""
    paused_since: datetime | None
    state: str | None
    """Of an always-on source."""
    open_tasks: int
    held: int
    """Deliveries that fire when it is resumed."""
    next_fire: datetime | None
    """Of a cron source: when its next slot fires, in UTC."""
    last_slot: datetime | None
    last_reason: str | None
    """Why the last slot did not fire; None: it fired, or there was none."""


class SourceList(Message, frozen=True):
    sources: list[SourceRow]


class NextFire(Message, frozen=True):
    slot: datetime
    """In UTC."""
    local: str
    """The same in the schedule's time zone."""
    fires_at: datetime
    """Later than the slot by the source's part of `jitter`."""


class SlotRow(Message, frozen=True):
    slot: datetime
    reason: str | None
    """Why it did not fire; None: it fired."""
    decided_at: datetime
    task_id: UUID | None
    task_status: str | None


class SourceDetail(SourceRow, frozen=True, kw_only=True):
    source: dict[str, Any]
    """As the DAG has it, with the defaults."""
    hook_path: str | None
    """Of a webhook source: where its sender posts to, at the Gateway."""
    next_fires: list[NextFire]
    """The next five."""
    slots: list[SlotRow]
    """The last twenty, the newest first."""


class FireRequest(Message, frozen=True):
    body: Any = None
    """Any JSON, given to the task as what fired it."""
    request_id: UUID | None = None
    """Yours, so that a repeated call is known as one; left out, each call is a new one."""


class FireAnswer(Message, frozen=True):
    request_id: UUID
    task_id: UUID | None
    """None: the source only emits events, or holds what it gets."""
    event_ids: list[UUID]
    delivery_id: UUID | None
    """Of a webhook source: what was stored, as if it had been sent."""
    held: bool
    """The source is paused: what was stored fires when it is resumed."""
    created: bool
    """False: the same request had been made before."""


class SourceDeliveriesQuery(Message, frozen=True):
    below: RowId | None = None
    """Only deliveries with a lower number, for the next page."""
    limit: Limit = 50


class SourceDeliveryRow(Message, frozen=True):
    id: UUID
    number: int
    key: str
    """The sender's id, or the SHA-256 of the body: a second one with the same key is answered and not stored."""
    received_at: datetime
    size_bytes: int
    held: bool
    pruned: bool
    """Its body is no longer kept."""
    task_id: UUID | None
    task_status: str | None


class SourceDeliveryList(Message, frozen=True):
    deliveries: list[SourceDeliveryRow]


class ReplayDeliveryRequest(Message, frozen=True):
    request_id: UUID | None = None
    """As for a fire."""
