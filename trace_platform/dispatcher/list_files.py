"""Which files a task reads: those in force at the commit that its claim pinned, and nothing that came later.

A task may also look at what it writes itself, as it is now: to compact, to align itself with partitions there.
"""

from __future__ import annotations

from typing import Any

import asyncpg
import msgspec

from trace_platform.capability.claims import Claims, GrantedDataset
from trace_platform.contracts import FilesAnswer, FilesRequest, PartitionFiles
from trace_platform.dispatcher.control import Control
from trace_platform.dispatcher.require_lease import require_lease
from trace_platform.domain.ranges import InvalidRange, Range, inclusive
from trace_platform.errors import Forbidden, InvalidRequest
from trace_platform.store.queries import queries


async def list_files(control: Control, request: FilesRequest, claims: Claims) -> FilesAnswer:
    granted, span, sql = _granted(request, claims), _span(request), queries("files")
    await require_lease(control, request)
    head = await control.pool.fetchrow(sql["generation_head"], granted.dataset_version)
    latest = head["last_commit"] or 0 if head else 0
    commit = latest if granted.commit is None else granted.commit
    start, stop = (span.start, span.stop) if span else (None, None)
    rows = await control.pool.fetch(sql["partitions_at"], granted.dataset_version, commit, start, stop)
    return FilesAnswer(
        dataset_version=granted.dataset_version,
        commit=commit,
        columns=_json(head["columns"]) if head else None,
        partitions=[_partition(row) for row in rows],
    )


def _granted(request: FilesRequest, claims: Claims) -> GrantedDataset:
    for granted in claims.datasets:
        if granted.dataset_uuid == request.dataset_uuid:
            return granted
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


def _partition(row: asyncpg.Record) -> PartitionFiles:
    return PartitionFiles(
        partition_key=row["partition_key"],
        location=row["location"],
        files=_json(row["files"]),
        commit=row["valid_from"],
        start=row["start"],
        end=row["end"],
        row_count=row["row_count"],
    )


def _json(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)
