"""Drops a dataset that no active version produces: its generations are marked, and the loop removes them at once.

Partitions and files go; commits stay in the ledger. A version that produces it can be activated again, and builds it
anew.
"""

from __future__ import annotations

from uuid import UUID

import asyncpg

from tracelake.dispatcher.datasets.show import find_dataset
from tracelake.errors import Conflict
from tracelake.runtime.crash_points import crash_point
from tracelake.store.identity import User
from tracelake.store.queries import Row, fetch_row, queries
from tracelake.wire.user.datasets import DropAnswer


class WritingDag(Row, frozen=True):
    dag: str
    is_served: bool
    readers: list[str]
    in_tables: bool


async def drop_dataset(pool: asyncpg.Pool, user: User, name_or_uuid: str) -> DropAnswer:
    """Serialized with activations; a dataset that was dropped before is dropped again without effect."""
    dataset, sql = await find_dataset(pool, user, name_or_uuid), queries("left_generations")
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute(queries("dags")["lock_activation"], user.org_id)
        _refuse_used(await fetch_row(connection, sql["find_use"], WritingDag, user.org_id, dataset), name_or_uuid)
        generations = await connection.fetchval(sql["mark_dropped"], user.org_id, dataset)
        crash_point("drop_dataset.before_commit")
    crash_point("drop_dataset.after_commit")
    return DropAnswer(dataset_uuid=UUID(str(dataset)), generations=generations)


def _refuse_used(use: WritingDag, named: str) -> None:
    if use.readers:
        raise Conflict(
            f"it is read by {', '.join(use.readers)}",
            where=named,
            hint="first, " + " and ".join(f"`trace dag deactivate {dag}`" for dag in use.readers),
        )
    if use.is_served:
        raise Conflict(
            f"the active version of DAG {use.dag} produces it",
            where=named,
            hint=f"activate a version without it, or `trace dag deactivate {use.dag}`",
        )
    if use.in_tables:
        raise Conflict("its rows are in a Postgres table, which Trace does not drop", where=named)
