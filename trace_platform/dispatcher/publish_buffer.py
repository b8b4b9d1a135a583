"""Step 9 of one event, for buffered datasets: the pointer to a batch is recorded, and owed to the Buffer Queue.

Both shapes of the specification are one request (S2). The same key and contents again is the same publish; the same key
with other contents is a conflict. Next: the sink.
"""

from __future__ import annotations

import hashlib
from uuid import UUID

import msgspec

from trace_platform.capability.claims import Claims
from trace_platform.contracts import BufferPublishAnswer, BufferPublishRequest
from trace_platform.crash_points import crash_point
from trace_platform.dispatcher.accept_event import lock_fenced
from trace_platform.dispatcher.control import Control
from trace_platform.domain.grants import GrantedDataset
from trace_platform.domain.objects import ObjectName
from trace_platform.errors import Conflict, Forbidden, InvalidRequest
from trace_platform.store.queries import queries


async def publish_buffer(control: Control, request: BufferPublishRequest, claims: Claims) -> BufferPublishAnswer:
    target = _target(request, claims)
    _refuse_foreign_uri(request, claims)
    contents = _contents(request, target)
    async with control.pool.acquire() as connection, connection.transaction():
        await lock_fenced(connection, request)
        row = await connection.fetchrow(
            queries("events")["publish_buffer"],
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
    assert row is not None  # noqa: S101 - an upsert always returns its row
    if row["content_hash"] != contents:
        raise Conflict("this batch has been published with other contents", where="/batch_uri")
    control.owed.ring()
    return BufferPublishAnswer(publish_id=row["id"])


def _target(request: BufferPublishRequest, claims: Claims) -> GrantedDataset:
    """By `dataset_uuid`, or by the name in `dedupe_scope`; both given must agree."""
    writable = claims.grants.written.values()
    by_name = [one for one in writable if request.dedupe_scope and one.name == request.dedupe_scope]
    by_id = [one for one in writable if one.dataset_uuid == request.dataset_uuid]
    if request.dataset_uuid is None and request.dedupe_scope is None:
        raise InvalidRequest("name the dataset by dataset_uuid or dedupe_scope", where="/dataset_uuid")
    found = by_name if request.dataset_uuid is None else by_id
    if not found:
        where = "/dedupe_scope" if request.dataset_uuid is None else "/dataset_uuid"
        raise Forbidden("the token does not let this task write that dataset", where=where)
    if request.dataset_uuid is not None and request.dedupe_scope is not None and found != by_name:
        raise InvalidRequest("dedupe_scope names another dataset than dataset_uuid", where="/dedupe_scope")
    if request.dataset_version not in (None, found[0].dataset_version):
        raise Forbidden("the token does not let this task write that version", where="/dataset_version")
    return found[0]


def _refuse_foreign_uri(request: BufferPublishRequest, claims: Claims) -> None:
    if not _is_object(request.batch_uri) or not claims.grants.storage.may_write(ObjectName.parse(request.batch_uri)):
        raise Forbidden(
            "the batch lies outside of what the token lets this task write",
            where="/batch_uri",
            hint=f"write it below one of: {', '.join(claims.s3.write) or 'nothing'}",
        )


def _is_object(uri: str) -> bool:
    try:
        ObjectName.parse(uri)
    except InvalidRequest:
        return False
    return True


def _contents(request: BufferPublishRequest, target: GrantedDataset) -> bytes:
    facts: tuple[UUID | str | int | None, ...] = (
        target.dataset_version,
        request.content_type,
        request.record_count,
        request.batch_size_bytes,
    )
    return hashlib.sha256(msgspec.json.encode(facts)).digest()
