"""Fetches a bundle, checks its size and hash, and unpacks it read-only, once per machine."""

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
from tracelake.wire.task.lifecycle import UdfRef

SHA256: Final = re.compile(r"[0-9a-f]{64}")


class Bundles:
    """`folder` has one folder per hash. Concurrent requests for a bundle share one fetch."""

    def __init__(self, folder: Path, http: httpx.AsyncClient, keep: timedelta) -> None:
        self._folder = folder
        self._keep = keep
        self._http = http
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def get(self, udf: UdfRef) -> Code:
        if not SHA256.fullmatch(udf.sha256):
            raise InvalidRequest("not a SHA-256 in hexadecimal digits", where="/udf/sha256")
        place = self._folder / udf.sha256
        if not place.is_dir():
            async with self._turns[udf.sha256]:
                await self._make(udf, place)
            self._turns.pop(udf.sha256, None)
        with suppress(OSError):  # another user's folder: unpacking reports it
            os.utime(place)
        return Code(place, udf.kind, udf.handler)

    async def _make(self, udf: UdfRef, place: Path) -> None:
        if place.is_dir():  # noqa: ASYNC240 - another call may have fetched it
            return
        archive = await self._fetch(udf)
        crash_point("runner.bundle_fetched")
        with suppress(ObjectExists):  # another runner unpacked the same bytes
            await asyncio.to_thread(_unpack, archive, place)
        crash_point("runner.bundle_unpacked")
        await asyncio.to_thread(delete_old_bundles, self._folder, self._keep)

    async def _fetch(self, udf: UdfRef) -> bytes:
        """Reads at most the announced size, and checks size and hash."""
        most = min(udf.size_bytes, LIMITS.archive_bytes)
        wrong_size = InvalidRequest(f"the bundle does not have {udf.size_bytes} bytes", where="/udf/url")
        try:
            async with self._http.stream("GET", udf.url) as answer:
                if answer.is_error:
                    raise NotFound(f"the bundle's address answered {answer.status_code}", where="/udf/url")
                body = await read_bounded(answer.aiter_raw(), most, where="/udf/url")
        except InvalidRequest:
            raise wrong_size from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ServiceUnavailable(f"the bundle cannot be fetched: {error or type(error).__name__}") from None
        if len(body) != udf.size_bytes:
            raise wrong_size
        if hashlib.sha256(body).hexdigest() != udf.sha256:
            raise InvalidRequest("the hash of the bundle does not match", where="/udf/sha256")
        return body


def delete_old_bundles(folder: Path, keep: timedelta) -> None:
    """Removes bundles that no task has used for so long, far longer than a sandbox lives, and what a kill left."""
    for place in folder.iterdir():
        with suppress(OSError):  # another runner does the same
            if place.stat().st_mtime < time.time() - keep.total_seconds():
                error = place.with_name(f".{place.name.strip('.')[:64]}.{uuid4().hex}.partial")
                remove_unpacked(place.rename(error))  # under its final name it is complete


def _unpack(archive: bytes, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    unpack(archive, place)
