"""Activates a version of a DAG at once: what it has not built yet is missing until its jobs have caught up.

Releases (`dispatcher/releases/`) build versions first, and then make the same switch. One DAG of a release that serves
does not go back alone: the others were built from what it makes, or it from what they make.
"""

from __future__ import annotations

from uuid import UUID

import asyncpg

from tracelake.dispatcher.dags.deploy import Runtimes
from tracelake.dispatcher.dags.switch import Activated, after_switch, parse_versions, switch
from tracelake.dispatcher.signal import AfterCommit
from tracelake.domain.ids import OrgId
from tracelake.errors import Conflict
from tracelake.runtime.crash_points import crash_point
from tracelake.store.queries import Connection, Row, find_row, queries

TRIES = 5
"""How often published datasets may change while the version is parsed, before the activation is refused."""


class ServingGroup(Row, frozen=True):
    release_id: UUID
    others: list[str]


async def activate_dag(
    pool: asyncpg.Pool, after: AfterCommit, org_id: UUID, dag_name: str, version_id: UUID, *, runtimes: Runtimes
) -> Activated:
    for _ in range(TRIES):
        parsed = await parse_versions(pool, runtimes, org_id, {dag_name: version_id})
        try:
            async with pool.acquire() as connection, connection.transaction():
                await _refuse_split(connection, org_id, dag_name, version_id)
                done = await switch(connection, OrgId(org_id), parsed)
                crash_point("activate_dag.before_commit", when=done is not None and done[0].changed)
        except asyncpg.DeadlockDetectedError:  # with claims of the tasks that are canceled here
            continue
        if done is not None:
            crash_point("activate_dag.after_commit")
            after_switch(after, done)
            return done[0]
    raise Conflict("other DAGs are being activated", where=dag_name, hint="try again")


async def _refuse_split(connection: Connection, org_id: UUID, dag_name: str, version_id: UUID) -> None:
    """After the lock of activations: a promotion makes a group that serves."""
    await connection.execute(queries("dags")["lock_activation"], org_id)
    sql = queries("releases")["find_serving_group"]
    group = await find_row(connection, sql, ServingGroup, org_id, dag_name, version_id)
    if group is not None:
        raise Conflict(
            f"DAG {dag_name!r} was released together with {', '.join(group.others)}, and cannot go back alone",
            where=dag_name,
            hint=f"`trace release rollback {group.release_id}` takes all back; `trace deploy FILE` changes this one",
        )
