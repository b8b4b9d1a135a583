"""Makes short-lived URLs from which runners fetch a bundle without a token.

A store that signs URLs (S3) does so itself. For a store on disk, the task API serves the object to a caller whose URL
carries organisation, hash and expiry under a MAC; all replicas share its key.
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

from tracelake.dispatcher.bundles.list import find_by_hash
from tracelake.dispatcher.control import Control
from tracelake.domain.object_names import ObjectName
from tracelake.errors import Forbidden, NotFound
from tracelake.store.jobs import JobBundle
from tracelake.wire.task_messages import UdfRef

KEY: Final = "bundle"
PATH: Final = "/v1/udf/bundle/"
SHA256: Final = re.compile(r"[0-9a-f]{64}")
SECONDS: Final = re.compile(r"[1-9][0-9]{0,11}")
PARAMETERS: Final = ("expires", "org", "signature")


async def bundle_ref(control: Control, org_id: UUID, bundle: JobBundle) -> UdfRef:
    """The part of a task's payload that describes its code."""
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
    parameters = {"org": str(org_id), "expires": expires, "signature": signature}
    return f"{control.task_url.rstrip('/')}{PATH}{sha256}?{urlencode(parameters)}"


async def bundle_bytes(control: Control, sha256: str, parameters: Mapping[str, str]) -> bytes:
    """The object of a URL that this system signed; Forbidden if it did not, or if the URL has expired."""
    org_id = await _require_signed(control, sha256, parameters)
    bundle = await find_by_hash(control.pool, org_id, sha256)
    if bundle is None or bundle.status != "Ready":
        raise NotFound("no such bundle", where="the path")
    return await asyncio.to_thread(control.objects.get, ObjectName.parse(bundle.location))


async def _require_signed(control: Control, sha256: str, parameters: Mapping[str, str]) -> UUID:
    org, expires, signature = (parameters.get(name, "") for name in ("org", "expires", "signature"))
    well_formed = sorted(parameters) == list(PARAMETERS) and SHA256.fullmatch(sha256) and SECONDS.fullmatch(expires)
    expected = await _mac(control, org, sha256, expires)
    # As bytes: `compare_digest` raises for text that is not ASCII.
    if not hmac.compare_digest(expected.encode(), signature.encode("utf-8", "replace")) or not well_formed:
        raise Forbidden("this URL was not signed here, or not for this bundle", where="query signature")
    if int(expires) <= control.clock():
        raise Forbidden("this URL has expired", where="query expires")
    return UUID(org)


async def _mac(control: Control, org: str, sha256: str, expires: str) -> str:
    key = await control.url_keys.get(control.pool, KEY)
    message = f"{KEY}\n{org}\n{sha256}\n{expires}".encode("utf-8", "replace")
    return hmac.new(key, message, hashlib.sha256).hexdigest()
