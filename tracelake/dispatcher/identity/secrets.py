"""Secrets of an organisation: set, list, remove. A value is stored encrypted, and never shown."""

from __future__ import annotations

from uuid import UUID

import asyncpg

from tracelake.dispatcher.identity.administer import administer
from tracelake.dispatcher.identity.stored_secrets import bound_to
from tracelake.domain.access.seal import Seal
from tracelake.errors import Conflict, InvalidRequest, NotFound
from tracelake.settings.secrets import hooks as hook_secrets
from tracelake.settings.secrets import jobs as job_secrets
from tracelake.store.identity import User
from tracelake.store.queries import Queryable, queries
from tracelake.wire.user.secrets import SecretKind, SecretList, SecretRemoved, SecretRow, SecretSet


async def list_secrets(database: Queryable, seal: Seal, org: UUID) -> SecretList:
    return SecretList(secrets=await _rows(database, seal, org))


async def set_secret(
    pool: asyncpg.Pool, seal: Seal, admin: User, kind: SecretKind, name: str, *, value: str
) -> SecretSet:
    _check(kind, value)
    if not seal.keys:
        hint = "set TRACE_DISPATCHER__SECRET_KEYS in the environment of the Dispatcher"
        raise Conflict("the Dispatcher has no key to encrypt secrets with", where="dispatcher.secret_keys", hint=hint)
    key_id, sealed = seal.close(value, *bound_to(admin.org_id, kind, name))
    values = admin.org_id, kind, name, key_id, sealed, admin.id
    async with administer(pool, admin) as connection:
        created = await connection.fetchval(queries("org_secrets")["set_secret"], *values)
    return SecretSet(kind=kind, name=name, created=created)


async def remove_secret(
    pool: asyncpg.Pool, seal: Seal, admin: User, kind: SecretKind, name: str, *, force: bool
) -> SecretRemoved:
    """Tasks that run keep the value that they were claimed with."""
    async with administer(pool, admin) as connection:
        found = await _rows(connection, seal, admin.org_id, kind, name)
        if not found:
            hint = "`trace secret list` lists them"
            raise NotFound(f"there is no secret {name} of kind {kind}", where="secret in the path", hint=hint)
        if found[0].used_by and not force:
            raise _in_use(found[0])
        await connection.execute(queries("org_secrets")["remove_secret"], admin.org_id, kind, name)
    return SecretRemoved(kind=kind, name=name, used_by=found[0].used_by)


def _check(kind: SecretKind, value: str) -> None:
    """Of a webhook, several may be valid at a time; no error repeats a value."""
    values = hook_secrets.split_secrets(value) if kind == "webhook" else (value.strip(),)
    shortest = hook_secrets.SHORTEST if kind == "webhook" else job_secrets.SHORTEST
    if not values or any(len(item) < shortest for item in values):
        raise InvalidRequest(f"a secret of kind {kind} has {shortest} characters or more", where="/value")


def _in_use(secret: SecretRow) -> Conflict:
    some, more = ", ".join(secret.used_by[:5]), len(secret.used_by) - 5
    users = f"{some} and {more} more" if more > 0 else some
    return Conflict(
        f"the secret {secret.name} is used by {users}",
        where="secret in the path",
        hint="with `force` it is removed; their next tasks or calls use the setting of that name, if there is one",
    )


async def _rows(
    database: Queryable, seal: Seal, org: UUID, kind: str | None = None, name: str | None = None
) -> list[SecretRow]:
    records = await database.fetch(queries("org_secrets")["list_secrets"], org, kind, name)
    return [
        SecretRow(readable=key_id in seal.keys, **fields)
        for record in records
        for fields in [dict(record)]
        for key_id in [fields.pop("key_id")]
    ]
