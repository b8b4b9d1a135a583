"""Messages about users, public keys, and credentials for the object store."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

import msgspec

from tracelake.domain.access.subjects import MAX_EMAIL, MAX_SUBJECT
from tracelake.wire.message import Fenced, Message


class UserAnswer(msgspec.Struct, frozen=True):
    id: UUID
    org_id: UUID
    org_slug: str
    email: str | None
    role: str
    platform_admin: bool = False


class UserTokenRequest(Message, frozen=True):
    token_hash: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    """SHA-256 of a personal access token, which itself is sent to no other process."""


class UserTokenAnswer(Message, frozen=True):
    token_id: UUID


class LoginClaim(Message, frozen=True):
    """A claim of a verified token that some rule of `login_rules` names, with the value that the rule names."""

    claim: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    value: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class UserLoginRequest(Message, frozen=True):
    """The user of a verified token, who may be new."""

    subject: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_SUBJECT)]
    claims: Annotated[tuple[LoginClaim, ...], msgspec.Meta(min_length=1, max_length=1000)]
    origin: Annotated[str, msgspec.Meta(max_length=64)]
    """The address from which the user calls, for the audit."""
    email: Annotated[str, msgspec.Meta(max_length=MAX_EMAIL)] | None = None
    """If the issuer has verified it."""


class UserLoginAnswer(Message, frozen=True):
    refused: str | None = None
    """Why the subject is no user; None: it is one now."""


class ServiceTokenCheck(Message, frozen=True):
    token_hash: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    """SHA-256 of what the listener of the caller received."""


class ServiceTokenAnswer(Message, frozen=True):
    service: str


class JsonWebKey(msgspec.Struct, frozen=True, omit_defaults=True):
    """The public half of a key, as RFC 7517 has it."""

    kid: str
    kty: str
    crv: str
    x: str
    y: str
    alg: str | None = None
    use: str | None = None


class KeySet(msgspec.Struct, frozen=True):
    keys: list[JsonWebKey]
    epoch: int
    """How often the system was restored from a backup: tokens of another epoch are refused."""


class CredentialsRequest(Fenced, frozen=True):
    """Keys for the object store, for what the token lets the task read and write."""


class SessionCredentials(Message, frozen=True, tag_field="kind", tag="session"):
    """Keys of a session at an S3 store."""

    access_key_id: str
    secret_access_key: str
    session_token: str
    expires_at: datetime
    """Never later than the token's end: get new ones with the fresh token of a heartbeat."""
    region: str
    read: list[str]
    """Folders, written `s3://bucket/folder/`."""
    write: list[str]
    endpoint: str | None = None
    """Unset: AWS."""


class MountedStorage(Message, frozen=True, tag_field="kind", tag="mounts"):
    """The store is a disk and has no keys: these folders, and no others, are mounted where the task runs."""

    read: list[str]
    write: list[str]


CredentialsAnswer = SessionCredentials | MountedStorage
