"""Whether the bundle that a job names can be run: there, judged, of that name, and with its handler in it."""

from __future__ import annotations

from uuid import UUID

import asyncpg

from tracelake.domain.bundle.rules import check_handler
from tracelake.domain.dag.parse import Udf
from tracelake.errors import Conflict, InvalidBundle


def usable_bundle(job: str, udf: Udf, row: asyncpg.Record | None) -> UUID:
    """`row`: the organisation's bundle with the content that the job names, if there is one."""
    where = f"jobs.{job}.udf"
    if row is None or row["status"] == "Pending":
        told = f"no bundle with the content {udf.sha256[:12]}... is ready"
        raise Conflict(told, where=f"{where}.sha256", hint=f"`trace udf push` {udf.bundle} first")
    if row["status"] == "Refused":
        told = f"the bundle with the content {udf.sha256[:12]}... was refused: {row['error_message']}"
        raise Conflict(told, where=f"{where}.sha256", hint="mend it, push it again, and name the new hash")
    if row["name"] != udf.bundle:
        told = f"the bundle with the content {udf.sha256[:12]}... is called {row['name']!r}, not {udf.bundle!r}"
        raise Conflict(told, where=f"{where}.bundle", hint=f"`bundle: {row['name']}`, or the hash of the right one")
    try:
        check_handler(row["entry_points"], row["kind"], udf.handler)
    except InvalidBundle as wrong:
        raise Conflict(wrong.message, where=f"{where}.handler", hint=wrong.hint) from None
    found: UUID = row["id"]
    return found
