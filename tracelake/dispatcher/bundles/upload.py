"""The bytes of an announced zip, into the object store under their hash: other bytes than were announced never get in.

Next: `bundles/finalize.py`, which reads them back and judges them.
"""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import suppress
from uuid import UUID

from tracelake.dispatcher.bundles.list import answer_of, bundle_row
from tracelake.dispatcher.control import Control
from tracelake.domain.object_names import ObjectName
from tracelake.errors import InvalidRequest, ObjectExists
from tracelake.wire.user_messages import BundleAnswer


async def upload_bundle(control: Control, org_id: UUID, bundle_id: UUID, archive: bytes) -> BundleAnswer:
    row = await bundle_row(control, org_id, bundle_id)
    if row["status"] == "Ready":
        return answer_of(control, row)
    if len(archive) != row["size_bytes"]:
        told = f"{len(archive)} bytes came, and {row['size_bytes']} were announced"
        raise InvalidRequest(told, where="", hint="announce what you send")
    if await asyncio.to_thread(_hash, archive) != row["sha256"]:
        raise InvalidRequest("the bytes that came are not those that were announced", where="", hint="send them again")
    with suppress(ObjectExists):  # by its hash: what is there is this
        await asyncio.to_thread(control.objects.put, ObjectName.parse(row["location"]), archive)
    return answer_of(control, row)


def _hash(archive: bytes) -> str:
    return hashlib.sha256(archive).hexdigest()
