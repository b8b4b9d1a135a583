"""Makes short-lived URLs from which runners fetch a bundle without a token.

A store that signs URLs (S3) does so itself. For a store on disk, the task API serves the object to a caller whose URL
carries organisation, hash and expiry under a MAC; all replicas share its key.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlencode
from uuid import UUID

import asyncpg

from tracelake.dispatcher.bundles.list import find_by_hash
from tracelake.domain.access.object_names import ObjectName
from tracelake.errors import Forbidden, NotFound
from tracelake.ports import ObjectStore
from tracelake.store.clock import DatabaseClock
from tracelake.store.jobs import JobBundle
from tracelake.store.queries import queries
from tracelake.wire.task.lifecycle import UdfRef

KEY: Final = "bundle"
KEY_BYTES: Final = 32
PATH: Final = "/v1/udf/bundle/"
SHA256: Final = re.compile(r"[0-9a-f]{64}")
SECONDS: Final = re.compile(r"[1-9][0-9]{0,11}")
PARAMETERS: Final = ("expires", "org", "signature")


@dataclass(frozen=True)
class BundleUrls:
    pool: asyncpg.Pool
    objects: ObjectStore
    clock: DatabaseClock
    valid_seconds: int
    task_url: str
    """The address of the task API for runners; empty: URLs are given without a host."""
    _keys: dict[str, bytes] = field(default_factory=dict)
    """Read from the database once."""

    async def ref(self, org_id: UUID, bundle: JobBundle) -> UdfRef:
        """The part of a task's payload that describes its code."""
        return UdfRef(
            bundle=bundle.name,
            sha256=bundle.sha256,
            kind=bundle.kind,
            handler=bundle.handler,
            size_bytes=bundle.size_bytes,
            url=await self.url(org_id, bundle.sha256, bundle.location),
        )

    async def url(self, org_id: UUID, sha256: str, location: str) -> str:
        signed = await asyncio.to_thread(self.objects.signed_url, ObjectName.parse(location), self.valid_seconds)
        if signed is not None:
            return signed
        expires = int(self.clock()) + self.valid_seconds
        signature = await self._mac(str(org_id), sha256, str(expires))
        parameters = {"org": str(org_id), "expires": expires, "signature": signature}
        return f"{self.task_url.rstrip('/')}{PATH}{sha256}?{urlencode(parameters)}"

    async def read(self, sha256: str, parameters: Mapping[str, str]) -> bytes:
        """The object of a URL that this system signed; Forbidden if it did not, or if the URL has expired."""
        org_id = await self._require_signed(sha256, parameters)
        bundle = await find_by_hash(self.pool, org_id, sha256)
        if bundle is None or bundle.status != "Ready":
            raise NotFound("no such bundle", where="the path")
        return await asyncio.to_thread(self.objects.get, ObjectName.parse(bundle.location))

    async def _require_signed(self, sha256: str, parameters: Mapping[str, str]) -> UUID:
        org, expires, signature = (parameters.get(name, "") for name in ("org", "expires", "signature"))
        well_formed = sorted(parameters) == list(PARAMETERS) and SHA256.fullmatch(sha256) and SECONDS.fullmatch(expires)
        expected = await self._mac(org, sha256, expires)
        # As bytes: `compare_digest` raises for text that is not ASCII.
        if not hmac.compare_digest(expected.encode(), signature.encode("utf-8", "replace")) or not well_formed:
            raise Forbidden("this URL was not signed here, or not for this bundle", where="query signature")
        if int(expires) <= self.clock():
            raise Forbidden("this URL has expired", where="query expires")
        return UUID(org)

    async def _mac(self, org: str, sha256: str, expires: str) -> str:
        message = f"{KEY}\n{org}\n{sha256}\n{expires}".encode("utf-8", "replace")
        return hmac.new(await self._key(), message, hashlib.sha256).hexdigest()

    async def _key(self) -> bytes:
        """Created once in the state database, and shared by all replicas."""
        if KEY not in self._keys:
            await self.pool.execute(queries("bundles")["ensure_url_key"], KEY, secrets.token_bytes(KEY_BYTES))
            self._keys[KEY] = await self.pool.fetchval(queries("bundles")["find_url_key"], KEY)
        return self._keys[KEY]
