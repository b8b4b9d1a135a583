"""Pushes a bundle of user code in three calls: announce it, upload its bytes, finalize it.

A bundle is identified by its content: the same content again is the same bundle. Name and kind of a ready bundle never
change, since jobs refer to it. `finalize` reads the stored bytes back and checks size, hash and every rule of
`domain/bundle/rules.py`; nothing that was announced is trusted.
"""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID

import asyncpg

from tracelake.dispatcher.bundles.list import StoredBundle, bundle_answer, find_by_hash, get_bundle
from tracelake.domain.access.object_names import ObjectName
from tracelake.domain.access.storage_locations import bundle_folder
from tracelake.domain.bundle.rules import BundleLimits, check, entry_points
from tracelake.errors import Conflict, InvalidBundle, InvalidRequest, NotFound, ObjectExists
from tracelake.ports import ObjectStore
from tracelake.store.identity import User
from tracelake.store.queries import queries
from tracelake.wire.user.bundles import BundleAnswer, BundleRequest

TRIES = 3
"""A refused bundle may be announced again while it is checked: then it is checked again."""


@dataclass(frozen=True)
class Verdict:
    reason: str | None = None
    """Why it is refused; None: it is ready."""
    entry_points: tuple[str, ...] = ()


async def announce_bundle(
    pool: asyncpg.Pool, user: User, request: BundleRequest, *, bucket: str, limit: int
) -> BundleAnswer:
    """`limit`: how many bytes it may have."""
    if request.size_bytes > limit:
        message = f"a bundle of {request.size_bytes} bytes is too large; the limit is {limit}"
        raise InvalidRequest(message, where="/size_bytes", hint="leave out what the function does not need")
    location = bundle_folder(bucket, user.org_id).object(f"{request.sha256}.zip")
    values = (request.name, request.kind, request.sha256, request.size_bytes, str(location))
    await pool.execute(queries("bundles")["announce_bundle"], user.org_id, *values, user.id)
    bundle = await find_by_hash(pool, user.org_id, request.sha256)
    if bundle is None:
        raise NotFound("the bundle was deleted meanwhile", where="/sha256", hint="announce it again")
    for field in ("name", "kind"):
        if getattr(bundle, field) != getattr(request, field):
            raise Conflict(
                f"a bundle with this content is ready already: {bundle.kind} bundle {bundle.name!r}",
                where=f"/{field}",
                hint=f"use `bundle: {bundle.name}` in the job",
            )
    return bundle_answer(bundle, limit)


async def upload_bundle(
    pool: asyncpg.Pool, org_id: UUID, bundle_id: UUID, archive: bytes, *, objects: ObjectStore, limit: int
) -> BundleAnswer:
    bundle = await get_bundle(pool, org_id, bundle_id)
    if bundle.status != "Ready":
        await _store(objects, bundle, archive)
    return bundle_answer(bundle, limit)


async def finalize_bundle(
    pool: asyncpg.Pool, org_id: UUID, bundle_id: UUID, *, objects: ObjectStore, limits: BundleLimits
) -> BundleAnswer:
    """Ready, or refused with the reason; a bundle that was decided stays as it is."""
    bundle = await get_bundle(pool, org_id, bundle_id)
    for _ in range(TRIES):
        if bundle.status != "Pending":
            break
        verdict = await asyncio.to_thread(_check, objects, limits, bundle)
        values = (bundle.kind, verdict.reason, list(verdict.entry_points))
        await pool.execute(queries("bundles")["decide_bundle"], org_id, bundle_id, *values)
        bundle = await get_bundle(pool, org_id, bundle_id)  # another call may have decided it
    return bundle_answer(bundle, limits.archive_bytes)


async def _store(objects: ObjectStore, bundle: StoredBundle, archive: bytes) -> None:
    if len(archive) != bundle.size_bytes:
        message = f"{len(archive)} bytes were sent, and {bundle.size_bytes} were announced"
        raise InvalidRequest(message, where="", hint="announce the size that you send")
    if await asyncio.to_thread(_hash, archive) != bundle.sha256:
        raise InvalidRequest("the bytes do not have the announced hash", where="", hint="send them again")
    with suppress(ObjectExists):  # its name is its hash: the same bytes
        await asyncio.to_thread(objects.put, ObjectName.parse(bundle.location), archive)


def _check(objects: ObjectStore, limits: BundleLimits, bundle: StoredBundle) -> Verdict:
    name = ObjectName.parse(bundle.location)
    try:
        archive = objects.get(name)
    except NotFound:
        hint = f"PUT /v1/udf/bundles/{bundle.id}/content first"
        raise Conflict("its bytes have not been uploaded", where=str(bundle.id), hint=hint) from None
    if len(archive) != bundle.size_bytes or _hash(archive) != bundle.sha256:
        objects.delete([name])  # so that the right bytes can be uploaded
        return Verdict("what was stored is not what was announced: upload it again")
    try:
        checked = check(archive, kind=bundle.kind, limits=limits)
    except InvalidBundle as wrong:
        return Verdict(wrong.message + (f" ({wrong.hint})" if wrong.hint else ""))
    return Verdict(None, entry_points(checked, bundle.kind))


def _hash(archive: bytes) -> str:
    return hashlib.sha256(archive).hexdigest()
