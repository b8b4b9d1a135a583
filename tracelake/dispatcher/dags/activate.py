"""Activates a version of a DAG at once: what it has not built yet is missing until its jobs have caught up.

Releases (`dispatcher/releases/`) build versions first, and then make the same switch.
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

TRIES = 5
"""How often published datasets may change while the version is parsed, before the activation is refused."""


async def activate_dag(
    pool: asyncpg.Pool, after: AfterCommit, org_id: UUID, dag_name: str, version_id: UUID, *, runtimes: Runtimes
) -> Activated:
    for _ in range(TRIES):
        parsed = await parse_versions(pool, runtimes, org_id, {dag_name: version_id})
        try:
            async with pool.acquire() as connection, connection.transaction():
                done = await switch(connection, OrgId(org_id), parsed)
                crash_point("activate_dag.before_commit", when=done is not None and done[0].changed)
        except asyncpg.DeadlockDetectedError:  # with claims of the tasks that are canceled here
            continue
        if done is not None:
            crash_point("activate_dag.after_commit")
            after_switch(after, done)
            return done[0]
    raise Conflict("other DAGs are being activated", where=dag_name, hint="try again")
