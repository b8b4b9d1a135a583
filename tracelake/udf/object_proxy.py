"""The object store for a sandbox: only what the current task's token grants (ADR 7).

`PUT` and `GET /{bucket}/{key}`, `GET /{bucket}?prefix=`. Names and grants are checked by the same code as everywhere;
an object is never replaced by other bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, Final
from urllib.parse import unquote

from aiohttp import web

from tracelake.capability.claims import Claims
from tracelake.capability.verifier import Verifier
from tracelake.domain.access.object_names import Folder, ObjectName
from tracelake.domain.ids import Attempt, TaskId
from tracelake.errors import Conflict, Forbidden, LimitReached, NotFound, ObjectExists
from tracelake.ports import ObjectStore
from tracelake.runtime.crash_points import crash_point
from tracelake.runtime.read_body import read_bounded
from tracelake.udf.sandbox_listener import json_response, not_found
from tracelake.wire.message import CAPABILITY_HEADER
from tracelake.wire.task.lifecycle import Invocation

MOST_LISTED: Final = 10_000
StoreFor = Callable[[str, Invocation], Awaitable[ObjectStore]]
"""The store, with the rights of the token where the store supports it."""


class Quota:
    """Limits the bytes and objects that one attempt may write."""

    def __init__(self, most_bytes: int, most_objects: int) -> None:
        self._most_bytes = most_bytes
        self._most_objects = most_objects
        self._attempt: tuple[TaskId, Attempt] | None = None
        self._bytes = 0
        self._objects = 0

    @contextmanager
    def charged(self, claims: Claims, size: int) -> Iterator[None]:
        """Charged before the write, since requests may be concurrent; refunded if the write fails."""
        if self._attempt != (attempt := (claims.task_id, claims.attempt)):
            self._attempt, self._bytes, self._objects = attempt, 0, 0
        if self._bytes + size > self._most_bytes:
            raise LimitReached(
                f"this attempt may write {self._most_bytes} bytes to the object store, and has written {self._bytes}",
                where="udf.put_mb",
                hint="write less, or raise the setting",
            )
        if self._objects >= self._most_objects:
            raise LimitReached(
                f"this attempt has written {self._objects} objects, as many as it may",
                where="udf.put_objects",
                hint="write fewer, larger objects, or raise the setting",
            )
        self._add(attempt, size, 1)
        try:
            yield
        except BaseException:
            self._add(attempt, -size, -1)
            raise

    def _add(self, attempt: tuple[TaskId, Attempt], size: int, count: int) -> None:
        if self._attempt == attempt:  # otherwise it has ended meanwhile
            self._bytes += size
            self._objects += count


class ObjectProxy:
    def __init__(
        self,
        verifier: Verifier,
        store_for: StoreFor,
        current: Callable[[], Invocation | None],
        *,
        put_bytes: int,
        get_bytes: int,
        quota: Quota,
    ) -> None:
        self._verifier = verifier
        self._store_for = store_for
        self._current = current
        self._put_bytes = put_bytes
        self._get_bytes = get_bytes
        self._quota = quota

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        token = request.headers.get(CAPABILITY_HEADER)
        claims = await self._verifier.verify(token)
        invocation = self._of_the_task(claims)
        # Decoded once, as everywhere; a name that is still encoded is invalid.
        path, query = (unquote(part) for part in _parted(request.raw_path))
        store = await self._store_for(token or "", invocation)
        if request.method == "PUT" and not query:
            return await self._put(store, claims, path, await read_bounded(request.content.iter_any(), self._put_bytes))
        if request.method == "GET" and not query:
            return await self._get(store, claims, path)
        if request.method == "GET" and query.startswith("prefix="):
            return await self._list(store, claims, f"s3:/{path}/{query.removeprefix('prefix=')}")
        raise not_found(request)

    def _of_the_task(self, claims: Claims) -> Invocation:
        """Refuses valid tokens of earlier or other tasks."""
        invocation = self._current()
        if invocation is None or (claims.task_id, claims.attempt) != (invocation.task_id, invocation.attempt):
            raise Forbidden("the token does not belong to the current task", where=CAPABILITY_HEADER)
        return invocation

    async def _put(self, store: ObjectStore, claims: Claims, path: str, body: bytes) -> web.Response:
        name = ObjectName.parse(f"s3:/{path}")
        if not claims.grants.storage.may_write(name):
            raise Forbidden("the token does not let this task write there", where=str(name))
        try:
            with self._quota.charged(claims, len(body)):
                await asyncio.to_thread(store.put, name, body)
        except (ObjectExists, LimitReached) as refused:
            # A retry after a lost response: an equal object gets the same response again.
            if isinstance(refused, LimitReached) and await asyncio.to_thread(store.head, name) is None:
                raise
            if await asyncio.to_thread(store.get, name) != body:
                raise Conflict("an object of this name exists, with other bytes", where=str(name)) from None
        crash_point("runner.object_put")
        return json_response({"name": str(name), "size": len(body)})

    async def _get(self, store: ObjectStore, claims: Claims, path: str) -> web.Response:
        name = ObjectName.parse(f"s3:/{path}")
        if not claims.grants.storage.may_read(name):
            raise Forbidden("the token does not let this task read there", where=str(name))
        found = await asyncio.to_thread(store.head, name)
        if found is None:
            raise NotFound("no such object", where=str(name))
        if found.size > self._get_bytes:
            hint = "read it through `query`, or with credentials in parts"
            raise LimitReached(f"the object has {found.size} bytes", where=str(name), hint=hint)
        return web.Response(body=await asyncio.to_thread(store.get, name))

    async def _list(self, store: ObjectStore, claims: Claims, written: str) -> web.Response:
        folder = Folder.parse(written)
        if not claims.grants.storage.may_list(folder):
            raise Forbidden("the token does not let this task list there", where=str(folder))
        found = await asyncio.to_thread(lambda: list(islice(store.objects(folder), MOST_LISTED + 1)))
        listed: list[dict[str, Any]] = [{"name": str(item.name), "size": item.size} for item in found[:MOST_LISTED]]
        return json_response({"objects": listed, "truncated": len(found) > MOST_LISTED})


def _parted(raw: str) -> tuple[str, str]:
    path, _, query = raw.partition("?")
    return path, query
