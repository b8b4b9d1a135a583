"""A bundle on this machine: fetched once, believed when its size and hash are right, unpacked once, read only."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import time
from collections import defaultdict
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Final
from uuid import uuid4

import httpx

from tracelake.domain.bundle.rules import LIMITS
from tracelake.errors import InvalidRequest, NotFound, ObjectExists, ServiceUnavailable
from tracelake.runtime.crash_points import crash_point
from tracelake.runtime.read_body import read_bounded
from tracelake.udf.sandbox_contents import Code
from tracelake.udf.unpack import remove_unpacked, unpack
from tracelake.wire.task_messages import UdfRef

SHA256: Final = re.compile(r"[0-9a-f]{64}")


class Bundles:
    """`folder` holds one folder for each hash. Who asks for what is being fetched waits for that."""

    def __init__(self, folder: Path, http: httpx.AsyncClient, keep: timedelta) -> None:
        self._folder = folder
        self._keep = keep
        self._http = http
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def get(self, udf: UdfRef) -> Code:
        if not SHA256.fullmatch(udf.sha256):
            raise InvalidRequest("no SHA-256 in hexadecimal digits", where="/udf/sha256")
        place = self._folder / udf.sha256
        if not place.is_dir():
            async with self._turns[udf.sha256]:
                await self._make(udf, place)
            self._turns.pop(udf.sha256, None)
        with suppress(OSError):  # another user's, who will say so himself
            os.utime(place)
        return Code(place, udf.kind, udf.handler)

    async def _make(self, udf: UdfRef, place: Path) -> None:
        if place.is_dir():  # noqa: ASYNC240 - whoever was before us in the queue
            return
        archive = await self._fetch(udf)
        crash_point("runner.bundle_fetched")
        with suppress(ObjectExists):  # another runner's, from the same bytes
            await asyncio.to_thread(_unpack, archive, place)
        crash_point("runner.bundle_unpacked")
        await asyncio.to_thread(forget_old, self._folder, self._keep)

    async def _fetch(self, udf: UdfRef) -> bytes:
        """Not a byte more than was said, and nothing but what was said."""
        most = min(udf.size_bytes, LIMITS.archive_bytes)
        try:
            async with self._http.stream("GET", udf.url) as answer:
                if answer.is_error:
                    raise NotFound(f"the bundle's address answered {answer.status_code}", where="/udf/url")
                body = await read_bounded(answer.aiter_raw(), most, where="/udf/url")
        except (httpx.HTTPError, httpx.InvalidURL) as away:
            raise ServiceUnavailable(f"the bundle cannot be fetched: {away or type(away).__name__}") from None
        if len(body) != udf.size_bytes:
            raise InvalidRequest(f"the bundle does not have the {udf.size_bytes} bytes it should", where="/udf/url")
        if hashlib.sha256(body).hexdigest() != udf.sha256:
            raise InvalidRequest("what lies there is not the bundle: its hash is another", where="/udf/sha256")
        return body


def forget_old(folder: Path, keep: timedelta) -> None:
    """Remove what no task has asked for in so long: far longer than any sandbox lives. And what a kill left."""
    for place in folder.iterdir():
        with suppress(OSError):  # another runner does the same
            if place.stat().st_mtime < time.time() - keep.total_seconds():
                away = place.with_name(f".{place.name.strip('.')[:64]}.{uuid4().hex}.partial")
                remove_unpacked(place.rename(away))  # under its own name it is whole, or it is not there


def _unpack(archive: bytes, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    unpack(archive, place)
