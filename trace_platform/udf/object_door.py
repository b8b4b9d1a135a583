"""The object store as a sandbox sees it: what the token of the task in hand names, and nothing else (ADR 7).

`PUT` and `GET /{bucket}/{key}`, `GET /{bucket}?prefix=`. Names are read by the same code as everywhere, asked of the
same grants, and written once: an object is never replaced by other bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import Any, Final
from urllib.parse import unquote

from aiohttp import web

from trace_platform.capability import CAPABILITY_HEADER, Claims
from trace_platform.capability.verifier import Verifier
from trace_platform.contracts import Invocation
from trace_platform.crash_points import crash_point
from trace_platform.domain.objects import Folder, ObjectName
from trace_platform.errors import Conflict, Forbidden, LimitReached, NotFound, ObjectExists
from trace_platform.ports import ObjectStore
from trace_platform.udf.listen import answered, body_of, no_such

MOST_LISTED: Final = 10_000
StoreFor = Callable[[str, Invocation], Awaitable[ObjectStore]]
"""The store, with the rights of that token where the store knows rights."""


class ObjectDoor:
    def __init__(
        self,
        verifier: Verifier,
        store_for: StoreFor,
        in_hand: Callable[[], Invocation | None],
        *,
        put_bytes: int,
        get_bytes: int,
    ) -> None:
        self._verifier = verifier
        self._store_for = store_for
        self._in_hand = in_hand
        self._put_bytes = put_bytes
        self._get_bytes = get_bytes

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        token = request.headers.get(CAPABILITY_HEADER)
        claims = await self._verifier.verify(token)
        invocation = self._of_the_task(claims)
        # Decoded once, as everywhere; what is left of a name must then be plain, or it is no name.
        path, query = (unquote(part) for part in _parted(request.raw_path))
        store = await self._store_for(token or "", invocation)
        if request.method == "PUT" and not query:
            return await self._put(store, claims, path, await body_of(request, self._put_bytes))
        if request.method == "GET" and not query:
            return await self._get(store, claims, path)
        if request.method == "GET" and query.startswith("prefix="):
            return await self._list(store, claims, f"s3:/{path}/{query.removeprefix('prefix=')}")
        raise no_such(request)

    def _of_the_task(self, claims: Claims) -> Invocation:
        """A token of an earlier task, or of another's, opens nothing here, however good it is."""
        invocation = self._in_hand()
        if invocation is None or (claims.task_id, claims.attempt) != (invocation.task_id, invocation.attempt):
            raise Forbidden("the token is not of the task in hand", where=CAPABILITY_HEADER)
        return invocation

    async def _put(self, store: ObjectStore, claims: Claims, path: str, body: bytes) -> web.Response:
        name = ObjectName.parse(f"s3:/{path}")
        if not claims.grants.storage.may_write(name):
            raise Forbidden("the token does not let this task write there", where=str(name))
        try:
            await asyncio.to_thread(store.put, name, body)
        except ObjectExists:
            if await asyncio.to_thread(store.get, name) != body:
                raise Conflict("an object of this name is there, with other bytes", where=str(name)) from None
        crash_point("runner.object_put")
        return answered({"name": str(name), "size": len(body)})

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
        listed: list[dict[str, Any]] = [{"name": str(one.name), "size": one.size} for one in found[:MOST_LISTED]]
        return answered({"objects": listed, "truncated": len(found) > MOST_LISTED})


def _parted(raw: str) -> tuple[str, str]:
    path, _, query = raw.partition("?")
    return path, query
