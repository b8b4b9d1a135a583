"""Decrypts the secrets of organisations: for a claim of their job, or for a call to their webhook source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

from tracelake.domain.access.seal import Seal
from tracelake.settings.secrets.hooks import split_secrets
from tracelake.store.queries import Queryable, Row, fetch_rows, queries
from tracelake.wire.user.secrets import SecretKind

Found = Mapping[tuple[UUID, str], str | None]


class SealedSecret(Row, frozen=True):
    org_id: UUID
    name: str
    key_id: str
    sealed: bytes


async def stored_secrets(
    database: Queryable, seal: Seal, kind: SecretKind, wanted: Iterable[tuple[UUID, str | None]]
) -> Found:
    """By organisation and name in lower case; None: it is stored, and no key here decrypts it."""
    pairs = [(org, name and name.lower()) for org, name in wanted]
    columns = [org for org, _ in pairs], kind, [name for _, name in pairs]
    rows = await fetch_rows(database, queries("org_secrets")["find_secrets"], SealedSecret, *columns)
    return {
        (row.org_id, row.name): seal.open(row.key_id, row.sealed, *bound_to(row.org_id, kind, row.name)) for row in rows
    }


def bound_to(org: UUID, kind: str, name: str) -> tuple[str, str, str]:
    """What an encrypted value belongs to."""
    return str(org), kind, name


async def hook_secrets_of(
    database: Queryable, seal: Seal, org: UUID, settings: Mapping[str, Sequence[str]]
) -> Mapping[str, Sequence[str]]:
    """By name in lower case: those of the organisation, then those of the settings."""
    found = await stored_secrets(database, seal, "webhook", [(org, None)])
    return {**settings, **{name: split_secrets(value or "") for (_, name), value in found.items()}}
