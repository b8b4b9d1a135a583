"""Deletes a DAG that is not active: its versions are gone, and the files of its datasets are removed.

One transaction, serialized with activations, marks both; the loop that removes left generations deletes the files. Rows
of versions and jobs stay, because the ledger and tasks refer to them; tasks are deleted by retention. A call that is
repeated, or that was interrupted after its commit, changes nothing.
"""

from __future__ import annotations

from uuid import UUID

import asyncpg

from tracelake.errors import Conflict, NotFound
from tracelake.runtime.crash_points import crash_point
from tracelake.store.identity import User
from tracelake.store.queries import Connection, Row, fetch_row, queries
from tracelake.wire.user.dags import DeleteDagAnswer


class DagUse(Row, frozen=True):
    active: bool
    releases: list[UUID]
    readers: list[str]
    existed: bool


class DeletedCounts(Row, frozen=True):
    versions: int
    jobs: int
    generations: int
    partitions: int
    bytes: int
    tables: list[str]


async def delete_dag(pool: asyncpg.Pool, user: User, dag_name: str, *, dry_run: bool = False) -> DeleteDagAnswer:
    """`dry_run`: what it would remove, or why it is refused."""
    sql = queries("delete_dag")
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute(queries("dags")["lock_activation"], user.org_id)
        await _refuse_used(connection, user.org_id, dag_name)
        removed = await fetch_row(connection, sql["measure"], DeletedCounts, user.org_id, dag_name)
        changes = bool(removed.versions) and not dry_run
        if changes:
            await connection.execute(sql["mark"], user.org_id, dag_name, user.id)
        crash_point("delete_dag.before_commit", when=changes)
    crash_point("delete_dag.after_commit", when=changes)
    values = {name: getattr(removed, name) for name in DeletedCounts.__struct_fields__}
    return DeleteDagAnswer(dag_name=dag_name, changed=changes, **values)


async def _refuse_used(connection: Connection, org_id: UUID, dag: str) -> None:
    use = await fetch_row(connection, queries("delete_dag")["find_use"], DagUse, org_id, dag)
    if not use.existed:
        raise NotFound(f"there is no DAG {dag!r}", where=dag, hint="`trace dag list` lists the DAGs")
    if use.active:
        raise Conflict(f"DAG {dag} is active", where=dag, hint=f"first, `trace dag deactivate {dag}`")
    if use.releases:
        verbs = " and ".join(f"`trace release abandon {release}`" for release in use.releases)
        raise Conflict(f"a release that is being built has a version of {dag}", where=dag, hint=f"first, {verbs}")
    if use.readers:
        verbs = " and ".join(f"`trace dag deactivate {reader}`" for reader in use.readers)
        raise Conflict(f"its datasets are read by {', '.join(use.readers)}", where=dag, hint=f"first, {verbs}")
