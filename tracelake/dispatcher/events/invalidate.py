"""A user invalidates a range of a dataset: the jobs that read it process that range again."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID

import asyncpg

from tracelake.dispatcher.signal import Signal
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
    pool: asyncpg.Pool,
    outbox: Signal,
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
    target, version = await _served(pool, org_id, dataset)
    own = invalidation_id(target, version, scope_key(RangeScope(span)), f"request:{request_id}")
    crash_point("invalidate.before_commit")
    new = await pool.fetchval(
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
    outbox.notify()
    return Invalidated(own, target, version, bool(new))


async def _served(pool: asyncpg.Pool, org_id: UUID, dataset: str | UUID) -> tuple[DatasetId, DatasetVersion]:
    by_id = dataset if isinstance(dataset, UUID) else None
    if by_id is None:
        with suppress(ValueError):
            by_id = UUID(str(dataset))
    found = await pool.fetchrow(queries("sources")["find_dataset"], org_id, str(dataset), by_id)
    if found is None:
        raise NotFound(f"no dataset {str(dataset)!r}", where="/dataset")
    id_, version = found
    if version is None:
        raise Conflict(
            f"no active DAG version serves {str(dataset)!r}", where="/dataset", hint="activate the DAG that makes it"
        )
    return DatasetId(id_), DatasetVersion(version)
