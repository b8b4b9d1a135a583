"""Comparisons of what a release has built with what serves: stores, lists, and checks them before a cutover.

The Query service makes them (`take_comparison.py`): the Dispatcher reads no rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import asyncpg
import msgspec

from tracelake.dispatcher.releases.resolve import Member
from tracelake.dispatcher.signal import AfterCommit
from tracelake.domain.cutover import Figures, exceeded
from tracelake.domain.dag.hashes import dataset_ids
from tracelake.domain.dag.model import JobOutput
from tracelake.domain.ids import OrgId
from tracelake.errors import Conflict
from tracelake.runtime.crash_points import crash_point
from tracelake.store.identity import User
from tracelake.store.queries import Connection, Queryable, Row, fetch_rows, queries
from tracelake.wire.user.releases import ReleaseComparison, ReleaseDiff

LATE: Final = timedelta(seconds=60)
"""A comparison that nothing has begun by then is mentioned."""
AGAIN: Final = timedelta(seconds=1)


class StoredComparison(Row, frozen=True):
    dag: str
    dataset: str
    dataset_uuid: UUID
    former: UUID
    generation: UUID
    state: str
    limits: Mapping[str, int | str]
    is_current: bool
    is_of_promotion: bool
    is_late: bool
    steps: int
    steps_planned: int
    compared_at: datetime | None
    result: Mapping[str, Any] | None
    error: str | None

    @property
    def diff(self) -> ReleaseDiff | None:
        return None if self.result is None else msgspec.convert(self.result, ReleaseDiff)

    @property
    def exceeded(self) -> list[str]:
        found = self.diff
        return [] if found is None else [str(item) for item in exceeded(self.limits, _figures(found))]

    @property
    def is_settled(self) -> bool:
        """Whether a promotion can be decided by it."""
        return self.is_current or (self.is_of_promotion and self.state in {"Done", "Failed"})


async def insert_comparisons(connection: Connection, release_id: UUID, org: OrgId, members: Sequence[Member]) -> None:
    limits = {dataset: limit for member in members for dataset, limit in _limits(member, org).items()}
    sql = queries("comparisons")["insert_comparisons"]
    await connection.execute(sql, release_id, list(limits), [dict(item) for item in limits.values()])


async def list_comparisons(database: Queryable, user: User, release_id: UUID) -> list[ReleaseComparison]:
    """Those of the datasets that the user may see."""
    names = [name for name in ReleaseComparison.__struct_fields__ if name not in {"result", "exceeded"}]
    return [
        msgspec.convert(
            {name: getattr(row, name) for name in names} | {"result": row.diff, "exceeded": row.exceeded},
            ReleaseComparison,
        )
        for row in await _list(database, release_id, user)
    ]


async def has_passed(pool: asyncpg.Pool, after: AfterCommit, release_id: UUID) -> bool:
    """Whether every dataset with limits has been compared, and keeps them.

    False: comparisons are to be made first, and then it is promoted by itself. One that cannot be made, or that found
    too much, is refused.
    """
    rows = [row for row in await _list(pool, release_id) if row.limits]
    refusals = [sentence for row in rows if row.is_settled for sentence in _refusals(row)]
    if refusals:
        raise Conflict(
            f"it is not promoted: {'; '.join(refusals)}",
            where=str(release_id),
            hint=f"`trace release show {release_id} --diff` has the figures; `trace release promote --force` overrules",
        )
    if all(row.is_settled for row in rows):
        return True
    requested: int = await pool.fetchval(queries("comparisons")["ask_promotion"], release_id, AGAIN)
    crash_point("ask_promotion.after_commit")
    if requested:
        after.comparisons.notify()
    late = [row for row in rows if row.state == "Waiting" and (row.is_late or row.error)]
    if late:
        await pool.execute(queries("releases")["check_later"], release_id, AGAIN, _waits(late))
    return False


async def overruled(database: Queryable, release_id: UUID) -> str | None:
    """What a promotion by force disregards."""
    rows = [row for row in await _list(database, release_id) if row.limits]
    found = [sentence for row in rows for sentence in (_refusals(row) or _not_compared(row))]
    return f"promoted by force: {'; '.join(found)}" if found else None


async def _list(database: Queryable, release_id: UUID, user: User | None = None) -> list[StoredComparison]:
    """For a user, or all, to decide a promotion."""
    reads_as = user.reads_as if user else (None, None, None)
    sql = queries("comparisons")["list_comparisons"]
    return await fetch_rows(database, sql, StoredComparison, release_id, LATE, *reads_as)


def _limits(member: Member, org: OrgId) -> dict[UUID, Mapping[str, int | str]]:
    dag = member.new.dag
    ids = dataset_ids(dag, org)
    return {
        ids[JobOutput(job.name, output.index)]: job.cutover for job in dag.jobs if job.cutover for output in job.outputs
    }


def _figures(found: ReleaseDiff) -> Figures:
    return Figures(found.rows_a, found.rows_b, found.only_a, found.only_b, found.changed, by_key=bool(found.key))


def _refusals(row: StoredComparison) -> list[str]:
    if row.state == "Failed":
        return [f"{row.dataset} cannot be compared: {row.error}"]
    return [f"{row.dataset}: {sentence}" for sentence in row.exceeded]


def _not_compared(row: StoredComparison) -> list[str]:
    return [] if row.is_settled else [f"{row.dataset} was not compared as it is now"]


def _waits(late: Sequence[StoredComparison]) -> str:
    names = ", ".join(row.dataset for row in late)
    error = next((f": {row.error}" for row in late if row.error), "")
    return (
        f"it is promoted as soon as the Query service has compared {names}, which is tried again and again{error}"
        " (`trace status` shows whether the service runs)"
    )
