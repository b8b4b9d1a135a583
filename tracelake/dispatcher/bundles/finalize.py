"""An uploaded zip is read back and judged: Ready, or Refused with the reason. What was judged stays so, however often.

Nothing that was announced is believed: size, hash and every rule of `domain/bundle/rules.py` are checked on the stored
bytes.
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass
from uuid import UUID

import asyncpg

from tracelake.dispatcher.bundles.list import answer_of, bundle_row
from tracelake.dispatcher.control import Control
from tracelake.domain.bundle.rules import Limits, check, entry_points
from tracelake.domain.object_names import ObjectName
from tracelake.errors import Conflict, InvalidBundle, NotFound
from tracelake.store.queries import queries
from tracelake.wire.user_messages import BundleAnswer

TRIES = 3
"""A bundle that was refused can be announced anew at the very moment: then it is judged again."""


@dataclass(frozen=True)
class Verdict:
    reason: str | None = None
    """Why it is refused; None: it is ready."""
    entry_points: tuple[str, ...] = ()


async def finalize_bundle(control: Control, org_id: UUID, bundle_id: UUID) -> BundleAnswer:
    row = await bundle_row(control, org_id, bundle_id)
    for _ in range(TRIES):
        if row["status"] != "Pending":
            break
        found = await asyncio.to_thread(_judge, control, row)
        sql = queries("bundles")["decide"]
        await control.pool.execute(sql, org_id, bundle_id, row["kind"], found.reason, list(found.entry_points))
        row = await bundle_row(control, org_id, bundle_id)  # as it was decided, by us or somebody quicker
    return answer_of(control, row)


def _judge(control: Control, row: asyncpg.Record) -> Verdict:
    name = ObjectName.parse(row["location"])
    try:
        archive = control.objects.get(name)
    except NotFound:
        told = "its bytes have not been uploaded"
        raise Conflict(told, where=str(row["id"]), hint=f"PUT /v1/udf/bundles/{row['id']}/content first") from None
    limits = Limits(archive_bytes=control.bundles.max_bytes, unpacked_bytes=control.bundles.max_unpacked_bytes)
    if len(archive) != row["size_bytes"] or hashlib.sha256(archive).hexdigest() != row["sha256"]:
        control.objects.delete([name])  # so that the right bytes can come
        return Verdict("what was stored is not what was announced: upload it again")
    try:
        bundle = check(archive, kind=row["kind"], limits=limits)
    except InvalidBundle as wrong:
        return Verdict(wrong.message + (f" ({wrong.hint})" if wrong.hint else ""))
    return Verdict(None, entry_points(bundle, row["kind"]))
