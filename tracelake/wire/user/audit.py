"""Messages about the audit of an organisation."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from msgspec import Meta

from tracelake.wire.message import Message
from tracelake.wire.user.fields import Limit

Place = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class AuditQuery(Message, frozen=True):
    before: Place | None = None
    """Entries before this one, the newest first."""
    after: Place | None = None
    """Entries after this one, the oldest first."""
    limit: Limit = 50


class AuditEntry(Message, frozen=True):
    seq: int
    """Its place in the chain of the organisation."""
    id: UUID
    happened_at: datetime
    actor: str
    action: str
    object: str
    origin: str
    outcome: str
    code: str | None
    detail: Any
    hash: str
    """SHA-256 of the hash before it and of `text`."""
    text: str
    """What the hash covers."""


class AuditList(Message, frozen=True):
    entries: list[AuditEntry]
    next: int | None


class AuditProblem(Message, frozen=True):
    seq: int
    what: str


class AuditVerified(Message, frozen=True):
    entries: int
    first: int
    last: int
    last_hash: str
    """Keep it: an audit that was cut at its end has another one at this place."""
    unlinked: int
    """Entries that are not in the chain yet."""
    problem: AuditProblem | None
