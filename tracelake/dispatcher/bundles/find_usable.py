"""Finds the bundle that a job runs, locked until its deploy ends, if the job may run it."""

from __future__ import annotations

from uuid import UUID

from tracelake.domain.bundle.rules import BundleKind, check_handler
from tracelake.domain.dag.model import Job, Udf
from tracelake.domain.ids import OrgId
from tracelake.errors import Conflict, InvalidBundle
from tracelake.store.queries import Connection, Row, find_row, queries


class UdfBundle(Row, frozen=True):
    id: UUID
    name: str
    kind: BundleKind
    status: str
    reason: str | None
    entry_points: list[str]


async def find_usable(connection: Connection, org: OrgId, job: Job) -> UUID | None:
    """None: the job runs no bundle."""
    if job.udf is None:
        return None
    sql = queries("dags")["lock_bundle"]
    bundle = await find_row(connection, sql, UdfBundle, org, job.udf.sha256)
    return _usable(f"jobs.{job.name}.udf", job.udf, bundle)


def _usable(where: str, udf: Udf, bundle: UdfBundle | None) -> UUID:
    """The id of the bundle if a job may run it: ready, with the name and the handler that the job refers to."""
    content = f"the bundle with the content {udf.sha256[:12]}..."
    if bundle is None or bundle.status == "Pending":
        message = f"no bundle with the content {udf.sha256[:12]}... is ready"
        raise Conflict(message, where=f"{where}.sha256", hint=f"`trace udf push` {udf.bundle} first")
    if bundle.status == "Refused":
        hint = "fix it, push it again, and use the new hash"
        raise Conflict(f"{content} was refused: {bundle.reason}", where=f"{where}.sha256", hint=hint)
    if bundle.name != udf.bundle:
        hint = f"`bundle: {bundle.name}`, or the hash of the right bundle"
        raise Conflict(f"{content} is called {bundle.name!r}, not {udf.bundle!r}", where=f"{where}.bundle", hint=hint)
    try:
        check_handler(bundle.entry_points, bundle.kind, udf.handler)
    except InvalidBundle as wrong:
        raise Conflict(wrong.message, where=f"{where}.handler", hint=wrong.hint) from None
    return bundle.id
