"""Lists releases, and how far one that is being built has come."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from uuid import UUID

import asyncpg
import msgspec

from tracelake.dispatcher.releases.compare import list_comparisons
from tracelake.dispatcher.versions.compare import Read, states
from tracelake.errors import NotFound
from tracelake.store.identity import User
from tracelake.store.queries import Queryable, Row, fetch_rows, queries
from tracelake.wire.user.releases import ReleaseDetail, ReleaseList, ReleaseMember, ReleaseRow


class ListedRelease(Row, frozen=True):
    id: UUID
    state: str
    when_ready: bool
    created_at: datetime
    ready_at: datetime | None
    promoted_at: datetime | None
    message: str | None
    dags: list[str]
    created_by: str | None


class StoredMember(Row, frozen=True):
    dag_name: str
    dag_version_id: UUID
    former_version_id: UUID | None
    active: UUID | None


class ReleaseRead(Read, frozen=True):
    """An input of a job of a release."""

    dag_name: str


async def list_releases(pool: asyncpg.Pool, org_id: UUID) -> ReleaseList:
    rows = await fetch_rows(pool, queries("releases")["list_releases"], ListedRelease, org_id, None)
    return ReleaseList(releases=[_row(row) for row in rows])


async def find_release(database: Queryable, org_id: UUID, release_id: UUID) -> ReleaseRow:
    rows = await fetch_rows(database, queries("releases")["list_releases"], ListedRelease, org_id, release_id)
    if not rows:
        raise NotFound(f"there is no release {release_id}", where="release", hint="`trace release list` lists them")
    return _row(rows[0])


async def show_release(pool: asyncpg.Pool, user: User, release_id: UUID) -> ReleaseDetail:
    release = await find_release(pool, user.org_id, release_id)
    members = await fetch_rows(pool, queries("releases")["list_members"], StoredMember, release_id)
    is_built = release.state in {"Building", "Ready"}
    counts = await count_units(pool, release_id) if is_built else {}
    open_tasks = await pool.fetchval(queries("releases")["count_open_tasks"], release_id)
    shown = [_member(member, counts.get(member.dag_name, Counter())) for member in members]
    comparisons = await list_comparisons(pool, user, release_id)
    return ReleaseDetail(release=release, members=shown, open_tasks=open_tasks, comparisons=comparisons)


async def count_units(database: Queryable, release_id: UUID) -> dict[str, Counter[str]]:
    """How many units of the inputs of each DAG's jobs are in which state."""
    reads = await fetch_rows(database, queries("releases")["list_release_reads"], ReleaseRead, release_id)
    counts: dict[str, Counter[str]] = {}
    for read in reads:
        of_dag = counts.setdefault(read.dag_name, Counter())
        async for page in states(database, read):
            of_dag.update(state for _, state in page)
    return counts


def _member(member: StoredMember, counts: Counter[str]) -> ReleaseMember:
    return ReleaseMember(
        dag=member.dag_name,
        dag_version_id=member.dag_version_id,
        former=member.former_version_id,
        planned=counts.total() - counts["skipped"],
        done=counts["done"],
        failed=counts["failed"],
    )


def _row(row: ListedRelease) -> ReleaseRow:
    return msgspec.convert({name: getattr(row, name) for name in ReleaseRow.__struct_fields__}, ReleaseRow)
