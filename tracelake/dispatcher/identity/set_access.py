"""Shows and decides who may read a dataset. It counts from the next call on, and no deploy changes it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal
from uuid import UUID

import asyncpg

from tracelake.dispatcher.datasets.show import find_dataset
from tracelake.dispatcher.identity.administer import administer
from tracelake.dispatcher.identity.show_roles import list_roles
from tracelake.domain.text.suggest import closest
from tracelake.errors import Conflict, InvalidRequest, NotFound
from tracelake.store.identity import User
from tracelake.store.queries import Connection, Queryable, Row, fetch_row, queries
from tracelake.wire.user.identity import AccessAnswer, AccessChange


class DatasetAccess(Row, frozen=True):
    dataset_uuid: UUID
    name: str | None
    visibility: str
    read_roles: list[str]
    set_by: str | None
    set_at: datetime | None


async def show_access(pool: asyncpg.Pool, user: User, name_or_uuid: str) -> AccessAnswer:
    return await _show(pool, user.org_id, await find_dataset(pool, user, name_or_uuid))


async def set_access(pool: asyncpg.Pool, admin: User, name_or_uuid: str, change: AccessChange) -> AccessAnswer:
    _check(change)
    dataset = await find_dataset(pool, admin, name_or_uuid)
    async with administer(pool, admin) as connection:
        # An activation copies what is decided.
        await connection.execute(queries("dags")["lock_activation"], admin.org_id)
        await _refuse_unknown(connection, admin.org_id, [*(change.set or ()), *(change.add or ())])
        now = await _show(connection, admin.org_id, dataset)
        visibility, roles = _changed(now, change)
        stored = visibility, [f"role:{role}" for role in roles], admin.id
        await connection.execute(queries("access")["set_access"], admin.org_id, dataset, *stored)
        return await _show(connection, admin.org_id, dataset)


def _check(change: AccessChange) -> None:
    kinds = [change.everyone, change.nobody, change.set is not None, bool(change.add or change.remove)]
    if sum(kinds) != 1:
        raise InvalidRequest("give one of everyone, nobody, set, or add and remove", where="")


def _changed(now: AccessAnswer, change: AccessChange) -> tuple[Literal["org", "roles"], list[str]]:
    if now.readers == "unpublished":
        raise Conflict("the dataset is not published: no user reads it", hint="`publish:` in its DAG gives it a name")
    if change.everyone:
        return "org", []
    if change.nobody or change.set is not None:
        return "roles", sorted(set(change.set or ()))
    if now.readers == "everyone":
        raise Conflict("everyone may read it, so there are no roles to add or remove", hint="restrict it with `set`")
    return "roles", sorted({*now.roles, *(change.add or ())} - {*(change.remove or ())})


async def _refuse_unknown(connection: Connection, org_id: UUID, roles: Sequence[str]) -> None:
    known = [row.role for row in (await list_roles(connection, org_id)).roles] if roles else []
    for role in roles:
        if role not in known:
            raise NotFound(f"there is no role {role!r}", where="/set or /add", hint=closest(role, known))


async def _show(database: Queryable, org_id: UUID, dataset: UUID) -> AccessAnswer:
    found = await fetch_row(database, queries("access")["show_access"], DatasetAccess, org_id, dataset)
    roles = sorted(role.removeprefix("role:") for role in found.read_roles)
    return AccessAnswer(
        dataset_uuid=found.dataset_uuid,
        name=found.name,
        readers=_readers(found.visibility, roles),
        roles=roles,
        set_by=found.set_by,
        set_at=found.set_at,
    )


def _readers(visibility: str, roles: Sequence[str]) -> Literal["everyone", "roles", "nobody", "unpublished"]:
    if visibility == "internal":
        return "unpublished"
    if visibility == "org":
        return "everyone"
    return "roles" if roles else "nobody"
