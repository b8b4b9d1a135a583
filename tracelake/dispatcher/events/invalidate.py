"""A user invalidates a range of a dataset: the jobs that read it process that range again."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID

import asyncpg

from tracelake.dispatcher.control import Control
from tracelake.domain.event import RangeScope, scope_key
from tracelake.domain.ids import DatasetId, DatasetVersion, invalidation_id
from tracelake.domain.ranges import InvalidRange, inclusive
from tracelake.errors import Conflict, InvalidRequest, NotFound
from tracelake.runtime.crash_points import crash_point
from tracelake.store.queries import queries


@dataclass(frozen=True)
class Invalidated:
    invalidation_id: UUID
    dataset_uuid: UUID
    dataset_version: UUID
    created: bool
    """False: the request was a repeated one."""


async def invalidate(
    control: Control,
    org_id: UUID,
    user_id: UUID,
    dataset: str | UUID,
    *,
    start: int,
    end: int,
    reason: str,
    request_id: UUID,
) -> Invalidated:
    """`start` to `end`, both inclusive, of the generation that is served now."""
    if not reason.strip():
        raise InvalidRequest("an invalidation needs a reason", where="/reason")
    try:
        span = inclusive(start, end)
    except InvalidRange as wrong:
        raise InvalidRequest(wrong.message, where="/start", hint=wrong.hint) from None
    row = await _served(control, org_id, dataset)
    target, version = DatasetId(row["id"]), DatasetVersion(row["dataset_version"])
    own = invalidation_id(target, version, scope_key(RangeScope(span)), f"request:{request_id}")
    crash_point("invalidate.before_commit")
    new = await control.pool.fetchval(
        queries("events")["store_invalidation"],
        own,
        org_id,
        target,
        version,
        span.start,
        span.stop,
        reason,
        None,
        None,
        None,
        user_id,
    )
    crash_point("invalidate.after_commit")
    control.outbox_signal.notify()
    return Invalidated(own, target, version, bool(new))


async def _served(control: Control, org_id: UUID, dataset: str | UUID) -> asyncpg.Record:
    by_id = dataset if isinstance(dataset, UUID) else None
    if by_id is None:
        with suppress(ValueError):
            by_id = UUID(str(dataset))
    row = await control.pool.fetchrow(queries("sources")["find_dataset"], org_id, str(dataset), by_id)
    if row is None:
        raise NotFound(f"no dataset {str(dataset)!r}", where="/dataset")
    if row["dataset_version"] is None:
        raise Conflict(
            f"no active DAG version serves {str(dataset)!r}", where="/dataset", hint="activate the DAG that makes it"
        )
    return row
