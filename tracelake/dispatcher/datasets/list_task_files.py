"""Which files a task reads: those in force at the commit that its claim pinned, and nothing that came later.

A task may also look at what it writes itself, as it is now, to align itself with partitions there. Of a hot input it is
told the files of its cold side, as they are now: what was compacted of it, in whichever generation.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import asyncpg

from tracelake.capability.claims import Claims
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.datasets.cold_files import cold_copies
from tracelake.dispatcher.datasets.partition_files import from_text, partition_files
from tracelake.dispatcher.tasks.require_lease import require_lease
from tracelake.domain.ranges import InvalidRange, Range, inclusive
from tracelake.errors import Forbidden, InvalidRequest, SnapshotTooOld
from tracelake.store.queries import queries
from tracelake.wire.task_messages import FilesAnswer, FilesRequest


async def list_files(control: Control, request: FilesRequest, claims: Claims) -> FilesAnswer:
    (version, pinned), span, sql = _granted(request, claims), _span(request), queries("files")
    await require_lease(control, request)
    head = await control.pool.fetchrow(sql["generation_head"], version)
    generations, commit = await _where(control, head, version, pinned)
    start, stop = (span.start, span.stop) if span else (None, None)
    rows = await control.pool.fetch(sql["partitions_at"], generations, commit, start, stop)
    refuse_removed(rows, commit)
    return FilesAnswer(
        dataset_version=version,
        commit=commit,
        columns=from_text(head["columns"]) if head else None,
        partitions=[partition_files(row) for row in rows],
    )


async def _where(
    control: Control, head: asyncpg.Record | None, version: UUID, pinned: int | None
) -> tuple[Sequence[UUID], int]:
    """The generations whose files are meant, and as of which commit."""
    if head is not None and head["hot"] and (twin := (await cold_copies(control.pool, [version])).get(version)):
        return twin.generations, twin.commit
    latest = head["last_commit"] or 0 if head else 0
    return [version], latest if pinned is None else pinned


def refuse_removed(rows: Sequence[asyncpg.Record], commit: int) -> None:
    """Better no answer than one with a hole in it."""
    gone = next((row for row in rows if row["files_removed_at"] is not None), None)
    if gone is not None:
        raise SnapshotTooOld(
            f"commit {commit} needs partition {gone['partition_key']} as it was, whose files were removed"
            f" {gone['files_removed_at']:%Y-%m-%d}",
            where=f"commit {commit}",
            hint="read at a later commit; setting dispatcher.replaced_kept_days says how long they stay",
        )


def _granted(request: FilesRequest, claims: Claims) -> tuple[UUID, int | None]:
    """The generation, and the commit that a reader pinned; what it writes it sees as it is now."""
    if view := claims.grants.read(request.dataset_uuid):
        return view.dataset_version, view.commit
    if written := claims.grants.written.get(request.dataset_uuid):
        return written.dataset_version, None
    raise Forbidden("the token does not name this dataset", where="/dataset_uuid")


def _span(request: FilesRequest) -> Range | None:
    if request.start is None and request.end is None:
        return None
    if request.start is None or request.end is None:
        raise InvalidRequest("a range needs both its start and its end", where="/start")
    try:
        return inclusive(request.start, request.end)
    except InvalidRange as wrong:
        raise InvalidRequest(wrong.message, where="/start", hint=wrong.hint) from None
