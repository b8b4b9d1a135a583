"""Announces a zip of user code before its first byte: name, kind, hash and size. Next: `upload.py`.

Content is what a bundle is: the same content again is the same bundle. What is ready keeps its name and kind, since
jobs name it; what is not can still be announced otherwise.
"""

from __future__ import annotations

from tracelake.dispatcher.bundles.list import answer_of
from tracelake.dispatcher.control import Control
from tracelake.domain.storage_locations import bundle_folder
from tracelake.errors import Conflict, InvalidRequest
from tracelake.store.identity import User
from tracelake.store.queries import queries
from tracelake.wire.user_messages import BundleAnswer, BundleRequest


async def announce_bundle(control: Control, user: User, asked: BundleRequest) -> BundleAnswer:
    most = control.bundles.max_bytes
    if asked.size_bytes > most:
        told = f"a bundle of {asked.size_bytes} bytes is too large; at most {most} are taken"
        raise InvalidRequest(told, where="/size_bytes", hint="leave out what the function does not need")
    place = bundle_folder(control.places.bucket, user.org_id).object(f"{asked.sha256}.zip")
    sql = queries("bundles")
    event_status = (asked.name, asked.kind, asked.sha256, asked.size_bytes, str(place))
    await control.pool.execute(sql["announce"], user.org_id, *event_status, user.id)
    (row,) = await control.pool.fetch(sql["by_hash"], user.org_id, asked.sha256)
    for field in ("name", "kind"):
        if row[field] != getattr(asked, field):
            raise Conflict(
                f"this very content is ready already, as {row['kind']} bundle {row['name']!r}",
                where=f"/{field}",
                hint=f"use `bundle: {row['name']}` in the job",
            )
    return answer_of(control, row)
