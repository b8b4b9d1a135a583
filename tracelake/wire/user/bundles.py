"""Messages of the user API about bundles of user code."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from msgspec import Meta

from tracelake.wire.message import Message
from tracelake.wire.user.fields import Limit, Name

MAX_BUNDLE_BODY = 256 * 1024 * 1024
"""More than any system may be set to take."""


BundleKind = Literal["python", "node", "bootstrap"]


class BundleRequest(Message, frozen=True):
    """A zip of user code that is to be uploaded."""

    name: Name
    kind: BundleKind
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    size_bytes: Annotated[int, Meta(ge=1, le=MAX_BUNDLE_BODY)]


class BundleRow(Message, frozen=True):
    id: UUID
    name: str
    kind: BundleKind
    sha256: str
    size_bytes: int
    status: Literal["Pending", "Ready", "Refused"]
    """Announced; checked and usable; checked and unusable."""
    reason: str | None
    """Why it was refused."""
    created_at: datetime
    finalized_at: datetime | None
    created_by: str | None


class UploadRef(Message, frozen=True):
    """How to send the bytes, before `finalize`."""

    method: Literal["PUT"]
    path: str
    content_type: str
    most_bytes: int


class BundleAnswer(BundleRow, frozen=True, kw_only=True):
    upload: UploadRef | None = None
    """None: nothing is to be sent, since this content is ready."""
    entry_points: list[str]
    """What a handler may name before its last dot."""


class BundlesQuery(Message, frozen=True):
    name: Name | None = None
    before: UUID | None = None
    limit: Limit = 50


class BundleList(Message, frozen=True):
    bundles: list[BundleRow]
    next: UUID | None
