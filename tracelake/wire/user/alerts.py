"""Messages about alerts: definitions, channels, deliveries; and those of the delivery process."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from msgspec import UNSET, Meta, UnsetType

from tracelake.wire.message import Message
from tracelake.wire.user.fields import Limit, Name

MAX_TARGETS = 1_000
MOST_CHANNELS = 20

Severity = Literal["info", "warning", "critical"]
DeliveryStatus = Literal["Pending", "Sent", "Failed", "Stale"]
Description = Annotated[str, Meta(max_length=2_000, pattern="^[^\\x00]*$")]
MaxAge = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Url = Annotated[str, Meta(min_length=1, max_length=2_000, pattern="^[^\\x00]*$")]
Secret = Annotated[str, Meta(min_length=16, max_length=500, pattern="^[^\\x00]*$")]
Channels = Annotated[list[Name], Meta(max_length=MOST_CHANNELS)]


class AlertRequest(Message, frozen=True):
    name: Name
    severity: Severity
    description: Description = ""
    enabled: bool = True
    params: Mapping[str, Any] = {}
    """For the code that evaluates it."""
    channels: Channels = []
    max_age_seconds: MaxAge | None = None
    """An alert about something older is not sent; none: no alert is too old."""


class AlertChange(Message, frozen=True):
    """What is left out stays as it is."""

    severity: Severity | UnsetType = UNSET
    description: Description | UnsetType = UNSET
    enabled: bool | UnsetType = UNSET
    params: Mapping[str, Any] | UnsetType = UNSET
    channels: Channels | UnsetType = UNSET
    max_age_seconds: MaxAge | UnsetType | None = UNSET


class AlertRow(Message, frozen=True):
    alert_definition_id: UUID
    name: str
    severity: Severity
    description: str
    enabled: bool
    params: Mapping[str, Any]
    channels: list[str]
    max_age_seconds: int | None
    created_by: str | None
    """E-mail, or else the subject of the identity provider."""
    created_at: datetime
    updated_at: datetime


class AlertList(Message, frozen=True):
    definitions: list[AlertRow]


class ChannelRequest(Message, frozen=True):
    name: Name
    url: Url
    kind: Literal["webhook"] = "webhook"
    secret: Secret | None = None
    """What deliveries are signed with; none: Trace makes one, and returns it in this answer alone."""


class ChannelChange(Message, frozen=True):
    url: Url | UnsetType = UNSET
    secret: Secret | UnsetType = UNSET


class ChannelRow(Message, frozen=True):
    name: str
    kind: Literal["webhook"]
    url: str
    used_by: list[str]
    """Names of alerts."""
    created_by: str | None
    created_at: datetime
    updated_at: datetime


class ChannelMade(ChannelRow, frozen=True, kw_only=True):
    secret: str | None = None
    """The one that Trace made; it is not shown again."""


class ChannelList(Message, frozen=True):
    channels: list[ChannelRow]


class Removed(Message, frozen=True):
    name: str


class DeliveryQuery(Message, frozen=True):
    status: DeliveryStatus | None = None
    alert: Name | None = None
    channel: Name | None = None
    before: UUID | None = None
    """The `next` of the page before."""
    limit: Limit = 50


class DeliveryRow(Message, frozen=True):
    id: UUID
    """The receiver gets it as `X-Trace-Delivery`."""
    alert: str
    alert_definition_id: UUID
    dedupe_key: str
    channel: str
    severity: str
    status: DeliveryStatus
    attempts: int
    last_error: str | None
    event_time: datetime
    created_at: datetime
    due_at: datetime | None
    """When it is tried next, while it is pending."""
    settled_at: datetime | None


class DeliveryList(Message, frozen=True):
    deliveries: list[DeliveryRow]
    next: UUID | None


class DeliveryRetried(Message, frozen=True):
    id: UUID
    status: DeliveryStatus


class FailuresRequest(Message, frozen=True):
    task_ids: Annotated[list[UUID], Meta(min_length=1, max_length=MAX_TARGETS)]


class FailureAlert(Message, frozen=True):
    """A task that has failed for good, and a channel that is to be notified of it."""

    task_id: UUID
    org_id: UUID
    alert_definition_id: UUID
    alert_name: str
    severity: str
    channel: str
    failed_at: datetime
    dag: str
    job: str
    attempt: int
    fault: str
    error: str


class FailuresAnswer(Message, frozen=True):
    alerts: list[FailureAlert]


class TargetRequest(Message, frozen=True):
    org_id: UUID
    alert_definition_id: UUID
    channel: str


class TargetsRequest(Message, frozen=True):
    targets: Annotated[list[TargetRequest], Meta(min_length=1, max_length=MAX_TARGETS)]


class Target(Message, frozen=True):
    """Where an alert goes. Only the delivery process asks for it, and it keeps it for seconds."""

    org_id: UUID
    alert_definition_id: UUID
    channel: str
    enabled: bool
    url: str
    secret: str
    max_age_seconds: int | None


class TargetsAnswer(Message, frozen=True):
    targets: list[Target]
    """Those that there are: an alert or channel that was removed is not among them."""
