"""A user invalidates a partition of a dataset, by its range or its label: the jobs that read it process it again."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID

import asyncpg

from tracelake.dispatcher.signal import Signal
from tracelake.domain.event import PartitionScope, RangeScope, partition_key, scope_key
from tracelake.domain.ids import DatasetId, DatasetVersion, invalidation_id
from tracelake.errors import Conflict, InvalidRequest, NotFound
from tracelake.runtime.crash_points import crash_point
from tracelake.store.queries import Row, find_row, queries


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
    scope: PartitionScope,
    reason: str,
    request_id: UUID,
) -> Invalidated:
    """Of the generation that is served now. A label must be known there; of a range, any part may be invalidated."""
    if not reason.strip():
        raise InvalidRequest("an invalidation needs a reason", where="/reason")
    target, version = await _served(pool, org_id, dataset)
    span = scope.span if isinstance(scope, RangeScope) else None
    if span is None and not await pool.fetchval(
        queries("events")["has_partition"], target, version, partition_key(scope)
    ):
        raise NotFound(
            f"{str(dataset)!r} has no partition {partition_key(scope)!r}",
            where="/partition",
            hint="`trace datasets show` lists the partitions that are there",
        )
    own = invalidation_id(target, version, scope_key(scope), f"request:{request_id}")
    crash_point("invalidate.before_commit")
    new = await pool.fetchval(
        queries("events")["store_invalidation"],
        own,
        org_id,
        target,
        version,
        span.start if span else None,
        span.stop if span else None,
        reason,
        None,
        None,
        None,
        user_id,
        partition_key(scope),
    )
    crash_point("invalidate.after_commit")
    outbox.notify()
    return Invalidated(own, target, version, bool(new))


class ServedGeneration(Row, frozen=True):
    id: UUID
    dataset_version: UUID | None


async def _served(pool: asyncpg.Pool, org_id: UUID, dataset: str | UUID) -> tuple[DatasetId, DatasetVersion]:
    by_id = dataset if isinstance(dataset, UUID) else None
    if by_id is None:
        with suppress(ValueError):
            by_id = UUID(str(dataset))
    found = await find_row(pool, queries("sources")["find_dataset"], ServedGeneration, org_id, str(dataset), by_id)
    if found is None:
        raise NotFound(f"no dataset {str(dataset)!r}", where="/dataset")
    if found.dataset_version is None:
        raise Conflict(
            f"no active DAG version serves {str(dataset)!r}", where="/dataset", hint="activate the DAG that makes it"
        )
    return DatasetId(found.id), DatasetVersion(found.dataset_version)
