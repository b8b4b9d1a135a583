"""A URL for one bundle and a short while, for whoever is to run it: the URL is the right, no token goes with it.

A store that signs URLs (S3) does so. A disk has no door, so ours stands in: the task door serves the object to who
shows organisation, content and end of time under a MAC whose key all replicas share.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlencode
from uuid import UUID

from tracelake.dispatcher.control import Control
from tracelake.domain.object_names import ObjectName
from tracelake.errors import Forbidden, NotFound
from tracelake.store.jobs import JobBundle
from tracelake.store.queries import queries
from tracelake.wire.task_messages import UdfRef

KEY: Final = "bundle"
PATH: Final = "/v1/udf/bundle/"
SHA256: Final = re.compile(r"[0-9a-f]{64}")
SECONDS: Final = re.compile(r"[1-9][0-9]{0,11}")
GIVEN: Final = ("expires", "org", "signature")


async def bundle_ref(control: Control, org_id: UUID, bundle: JobBundle) -> UdfRef:
    """What a task is told about the code that it runs."""
    return UdfRef(
        bundle=bundle.name,
        sha256=bundle.sha256,
        kind=bundle.kind,
        handler=bundle.handler,
        size_bytes=bundle.size_bytes,
        url=await bundle_url(control, org_id, bundle.sha256, bundle.location),
    )


async def bundle_url(control: Control, org_id: UUID, sha256: str, location: str) -> str:
    seconds = control.bundles.url_seconds
    signed = await asyncio.to_thread(control.objects.signed_url, ObjectName.parse(location), seconds)
    if signed is not None:
        return signed
    expires = int(control.clock()) + seconds
    signature = await _mac(control, str(org_id), sha256, str(expires))
    shown = {"org": str(org_id), "expires": expires, "signature": signature}
    return f"{control.task_url.rstrip('/')}{PATH}{sha256}?{urlencode(shown)}"


async def bundle_bytes(control: Control, sha256: str, given: Mapping[str, str]) -> bytes:
    """The object that a URL of ours names; Forbidden if it is not ours, not for this, or not any more."""
    org_id = await _require_ours(control, sha256, given)
    row = await control.pool.fetchrow(queries("bundles")["by_hash"], org_id, sha256)
    if row is None or row["status"] != "Ready":
        raise NotFound("no such bundle", where="the path")
    return await asyncio.to_thread(control.objects.get, ObjectName.parse(row["location"]))


async def _require_ours(control: Control, sha256: str, given: Mapping[str, str]) -> UUID:
    org, expires, signature = (given.get(name, "") for name in ("org", "expires", "signature"))
    formed = sorted(given) == list(GIVEN) and SHA256.fullmatch(sha256) and SECONDS.fullmatch(expires)
    expected = await _mac(control, org, sha256, expires)
    # Compared as bytes: text that is not ASCII would be an error there, and is only a wrong signature here.
    if not hmac.compare_digest(expected.encode(), signature.encode("utf-8", "replace")) or not formed:
        raise Forbidden("this URL was not given out here, or not for this bundle", where="query signature")
    if int(expires) <= control.clock():
        raise Forbidden("this URL held for a while only, and that is over", where="query expires")
    return UUID(org)


async def _mac(control: Control, org: str, sha256: str, expires: str) -> str:
    key = await control.url_keys.get(control.pool, KEY)
    said = f"{KEY}\n{org}\n{sha256}\n{expires}".encode("utf-8", "replace")
    return hmac.new(key, said, hashlib.sha256).hexdigest()
