"""Deactivates a DAG: no version of it serves, its tasks end, its sources drain and its names are released.

One transaction, serialized with activations. Versions stay, and generations do for some days
(`maintenance/remove_left_generations.py`): activating a version again serves what it had. A DAG whose datasets others
read is not deactivated.
"""

from __future__ import annotations

from uuid import UUID

import asyncpg

from tracelake.dispatcher.dags.switch import NameInUse
from tracelake.dispatcher.signal import AfterCommit
from tracelake.dispatcher.sources.retire import retire_sources
from tracelake.domain.task import TaskState
from tracelake.errors import Conflict, NotFound
from tracelake.runtime.crash_points import crash_point
from tracelake.store.queries import Connection, fetch_column, fetch_rows, queries
from tracelake.wire.user.dags import DeactivateAnswer

TRIES = 5
"""How often a claim of one of its tasks may come between."""


async def deactivate_dag(pool: asyncpg.Pool, after: AfterCommit, org_id: UUID, dag_name: str) -> DeactivateAnswer:
    """A DAG that is not active stays so: the call may be a repeated one."""
    for _ in range(TRIES):
        try:
            done = await _deactivate(pool, org_id, dag_name)
        except asyncpg.DeadlockDetectedError:
            continue
        crash_point("deactivate_dag.after_commit", when=done.changed)
        for signal in (after.outbox, after.leases, after.sources, after.stops):
            signal.notify()
        after.metrics.moved("any", TaskState.CANCELED, done.canceled_tasks)
        return done
    raise Conflict("its tasks are being claimed", where=dag_name, hint="try again")


async def _deactivate(pool: asyncpg.Pool, org_id: UUID, dag_name: str) -> DeactivateAnswer:
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute(queries("dags")["lock_activation"], org_id)
        former = await _active(connection, org_id, dag_name)
        if former is None:
            return DeactivateAnswer(dag_name=dag_name, former=None, changed=False, canceled_tasks=0)
        await connection.execute(queries("releases")["overtake"], org_id, [dag_name], None)
        canceled = await withdraw(connection, org_id, dag_name)
        crash_point("deactivate_dag.before_commit")
        return DeactivateAnswer(dag_name=dag_name, former=former, changed=True, canceled_tasks=canceled)


async def withdraw(connection: Connection, org_id: UUID, dag_name: str) -> int:
    """Makes no version active, under the lock of activations. How many tasks were canceled."""
    sql = queries("dags")
    await _refuse_read(connection, org_id, dag_name)
    await connection.execute(sql["clear_current_version"], org_id, dag_name)
    canceled = int(await connection.fetchval(sql["cancel_inactive_tasks"], org_id, dag_name))
    await retire_sources(connection, org_id, dag_name)
    # Names last, as in an activation: a completion locks its task before its dataset.
    await connection.execute(sql["clear_names"], org_id, dag_name, [], [])
    return canceled


async def _active(connection: Connection, org_id: UUID, dag_name: str) -> UUID | None:
    found: list[UUID | None] = await fetch_column(connection, queries("dags")["find_active"], org_id, dag_name)
    if not found:
        raise NotFound(f"there is no DAG {dag_name!r}", where=dag_name, hint="`trace dag list` lists the DAGs")
    return found[0]


async def _refuse_read(connection: Connection, org_id: UUID, dag_name: str) -> None:
    kept: tuple[list[UUID], list[str]] = ([], [])
    in_use = await fetch_rows(connection, queries("dags")["list_names_in_use"], NameInUse, org_id, dag_name, *kept)
    if in_use:
        read = "; ".join(f"{name.name!r} is read by {', '.join(name.readers)}" for name in in_use)
        readers = sorted({reader for name in in_use for reader in name.readers})
        raise Conflict(
            f"other DAGs read what {dag_name} publishes: {read}",
            where=dag_name,
            hint="first, " + " and ".join(f"`trace dag deactivate {reader}`" for reader in readers),
        )
