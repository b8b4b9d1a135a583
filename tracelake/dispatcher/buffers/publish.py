"""Step 9 of one event, for buffered datasets: records a pointer to a batch, with an outbox entry for the Buffer Queue.

Both shapes of the specification are one request (S2). The same key and contents again is the same publish; the same key
with other contents is a conflict. Next: the sink.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from uuid import UUID

import asyncpg
import msgspec

from tracelake.capability.claims import Claims
from tracelake.dispatcher.signal import Signal
from tracelake.domain.access.grants import GrantedDataset
from tracelake.domain.access.object_names import Folder, ObjectName
from tracelake.domain.access.storage_locations import buffer_folder, shared_buffer_folder
from tracelake.errors import Conflict, Forbidden, InvalidRequest, NotFound
from tracelake.ports import ObjectStore
from tracelake.runtime.crash_points import crash_point
from tracelake.store.queries import Row, fetch_row, queries
from tracelake.store.tasks import lock_open
from tracelake.wire.task.buffers import BufferPublishAnswer, BufferPublishRequest


class StoredPublish(Row, frozen=True):
    id: UUID
    content_hash: bytes


async def publish_buffer(
    pool: asyncpg.Pool,
    outbox: Signal,
    request: BufferPublishRequest,
    claims: Claims,
    *,
    objects: ObjectStore,
    scratch_bucket: str,
) -> BufferPublishAnswer:
    target = _target(request, claims)
    _refuse_foreign_uri(request, claims, _folders(scratch_bucket, target, claims))
    await _refuse_missing(pool, objects, request, claims, target)
    contents = _contents(request, target)
    async with pool.acquire() as connection, connection.transaction():
        await lock_open(connection, request)
        stored = await fetch_row(
            connection,
            queries("events")["publish_buffer"],
            StoredPublish,
            claims.org_id,
            claims.task_id,
            claims.attempt,
            target.dataset_uuid,
            target.dataset_version,
            request.batch_uri,
            request.content_type,
            request.record_count,
            request.batch_size_bytes,
            contents,
        )
        crash_point("publish_buffer.before_commit")
    crash_point("publish_buffer.after_commit")
    if stored.content_hash != contents:
        raise Conflict("this batch has been published with other contents", where="/batch_uri")
    outbox.notify()
    return BufferPublishAnswer(publish_id=stored.id)


async def _refuse_missing(
    pool: asyncpg.Pool, objects: ObjectStore, request: BufferPublishRequest, claims: Claims, target: GrantedDataset
) -> None:
    """The batch must exist, unless it was published before: then it may have been merged and deleted."""
    name = ObjectName.parse(request.batch_uri)
    if await asyncio.to_thread(objects.head, name) is not None:
        return
    key = (claims.task_id, claims.attempt, target.dataset_uuid, request.batch_uri)
    if not await pool.fetchval(queries("events")["is_published"], *key):
        raise NotFound("there is no object with this name", where="/batch_uri", hint="write the batch, then publish it")


def _target(request: BufferPublishRequest, claims: Claims) -> GrantedDataset:
    """By `dataset_uuid`, or by the name in `dedupe_scope`; if both are set, they must agree."""
    writable = claims.grants.written.values()
    by_name = [dataset for dataset in writable if request.dedupe_scope and dataset.name == request.dedupe_scope]
    by_id = [dataset for dataset in writable if dataset.dataset_uuid == request.dataset_uuid]
    if request.dataset_uuid is None and request.dedupe_scope is None:
        raise InvalidRequest("name the dataset by dataset_uuid or dedupe_scope", where="/dataset_uuid")
    matching = by_name if request.dataset_uuid is None else by_id
    if not matching:
        where = "/dedupe_scope" if request.dataset_uuid is None else "/dataset_uuid"
        raise Forbidden("the token does not let this task write that dataset", where=where)
    if request.dataset_uuid is not None and request.dedupe_scope is not None and matching != by_name:
        raise InvalidRequest("dedupe_scope names another dataset than dataset_uuid", where="/dedupe_scope")
    if request.dataset_version not in (None, matching[0].dataset_version):
        raise Forbidden("the token does not let this task write that version", where="/dataset_version")
    return matching[0]


def _folders(bucket: str, target: GrantedDataset, claims: Claims) -> list[Folder]:
    """The folders in which the sink reads batches of this attempt: with the dataset in the path, or without (S2)."""
    task, attempt = claims.task_id, claims.attempt
    return [buffer_folder(bucket, target.dataset_uuid, task, attempt), shared_buffer_folder(bucket, task, attempt)]


def _refuse_foreign_uri(request: BufferPublishRequest, claims: Claims, folders: Sequence[Folder]) -> None:
    """An older token may not grant both folders."""
    name = _object(request.batch_uri)
    inside = name is not None and any(folder.holds(name) for folder in folders)
    if name is None or not inside or not claims.grants.storage.may_write(name):
        raise Forbidden(
            "the batch is outside the folders that the token lets this task write",
            where="/batch_uri",
            hint=f"write it below one of: {', '.join(map(str, folders))}",
        )


def _object(uri: str) -> ObjectName | None:
    try:
        return ObjectName.parse(uri)
    except InvalidRequest:
        return None


def _contents(request: BufferPublishRequest, target: GrantedDataset) -> bytes:
    facts: tuple[UUID | str | int | None, ...] = (
        target.dataset_version,
        request.content_type,
        request.record_count,
        request.batch_size_bytes,
    )
    return hashlib.sha256(msgspec.json.encode(facts)).digest()
