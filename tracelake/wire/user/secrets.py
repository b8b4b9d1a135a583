"""Messages about the secrets of an organisation. None of them to a user has a value."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from msgspec import Meta

from tracelake.wire.message import Message

SecretKind = Literal["job", "webhook"]
MAX_SECRET = 16_384


class SecretRequest(Message, frozen=True):
    value: Annotated[str, Meta(min_length=1, max_length=MAX_SECRET, pattern="^[^\\x00]*$")]
    """6 characters or more; for a webhook 16, and several that are valid at a time are separated by blanks."""

    def __repr__(self) -> str:
        return "SecretRequest()"


class SecretSet(Message, frozen=True):
    kind: SecretKind
    name: str
    created: bool
    """False: it has replaced another value."""


class SecretRow(Message, frozen=True):
    kind: SecretKind
    name: str
    set_by: str
    """The subject of the user."""
    set_at: datetime
    used_by: list[str]
    """Jobs of active versions that name it, written `dag.job`."""
    readable: bool
    """False: the Dispatcher does not have the key that encrypted it."""


class SecretList(Message, frozen=True):
    secrets: list[SecretRow]


class RemoveSecretQuery(Message, frozen=True):
    force: bool = False
    """Also if jobs of active versions name it."""


class SecretRemoved(Message, frozen=True):
    kind: SecretKind
    name: str
    used_by: list[str]
    """Jobs of active versions that named it."""
