"""Lists the files that a task reads: those of the commit that its claim pinned.

A task may also list the current files of its outputs, to align itself with existing partitions. Of a hot input it gets
the current files of the Parquet copy, in whichever generation they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import asyncpg

from tracelake.capability.claims import Claims
from tracelake.dispatcher.datasets.partitions import (
    GenerationHead,
    cold_copies,
    generation_head,
    partitions_at,
    refuse_removed,
)
from tracelake.domain.ranges import InvalidRange, Range, inclusive
from tracelake.errors import Forbidden, InvalidRequest
from tracelake.store.tasks import require_running
from tracelake.wire.task.outputs import FilesAnswer, FilesRequest


async def list_files(pool: asyncpg.Pool, request: FilesRequest, claims: Claims) -> FilesAnswer:
    (version, pinned), span = _granted(request, claims), _span(request)
    await require_running(pool, request)
    head = await generation_head(pool, version)
    generations, commit = await _snapshot(pool, head, version, pinned)
    partitions = await partitions_at(pool, generations, commit, span)
    refuse_removed(partitions, commit)
    return FilesAnswer(
        dataset_version=version,
        commit=commit,
        columns=head.columns,
        partitions=[partition.as_message() for partition in partitions],
    )


async def _snapshot(
    pool: asyncpg.Pool, head: GenerationHead, version: UUID, pinned: int | None
) -> tuple[Sequence[UUID], int]:
    """The generations that hold the files, and the commit."""
    if head.hot and (copy := (await cold_copies(pool, [version])).get(version)):
        return copy.generations, copy.commit
    return [version], head.last_commit if pinned is None else pinned


def _granted(request: FilesRequest, claims: Claims) -> tuple[UUID, int | None]:
    """The generation and, for an input, the commit that the token pins."""
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
