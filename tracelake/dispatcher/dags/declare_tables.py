"""The declarations of buffered datasets come into force with their version, and the sink is owed a word about each.

Part of an activation's transaction. What is in force only becomes more: a version that lacks columns of a newer one can
serve again, and its writers leave them empty.
"""

from __future__ import annotations

import asyncpg
import msgspec

from tracelake.domain.buffered import SPARK_TYPES, Declaration, from_json, refusals, to_json, widened
from tracelake.domain.dag.parse import BufferedDataset, Dag, declared_ids, generation_ids
from tracelake.domain.ids import DatasetId, OrgId
from tracelake.errors import Conflict
from tracelake.store.queries import queries
from tracelake.wire.markers import ColumnEntry, hash_of_schema


async def declare_tables(connection: asyncpg.pool.PoolConnectionProxy, org: OrgId, dag: Dag) -> None:
    ids = declared_ids(dag, org)
    for item in sorted(dag.buffered, key=lambda element: element.name):
        await _declare(connection, org, dag, item, ids[item.name])


async def _declare(
    connection: asyncpg.pool.PoolConnectionProxy,
    org: OrgId,
    dag: Dag,
    buffered_dataset: BufferedDataset,
    dataset: DatasetId,
) -> None:
    sql = queries("buffered")
    row = await connection.fetchrow(sql["declaration_of"], dataset, org)
    force = from_json(msgspec.json.decode(row["declaration"])) if row else None
    _refuse_contradiction(force, buffered_dataset)
    wanted = widened(force, buffered_dataset.declaration)
    if wanted == force:
        return
    columns = readable(wanted)
    await connection.execute(
        sql["declare"],
        dataset,
        org,
        generation_ids(dag, org)[dataset],
        dag.name,
        buffered_dataset.name,
        to_json(wanted),
        msgspec.to_builtins(columns),
        hash_of_schema(columns),
    )


def readable(declaration: Declaration) -> list[ColumnEntry]:
    """The columns as Spark reads them."""
    return [ColumnEntry(name=item.name, type=SPARK_TYPES.get(item.type, item.type)) for item in declaration.columns]


def _refuse_contradiction(force: Declaration | None, buffered_dataset: BufferedDataset) -> None:
    names = buffered_dataset.declaration.names
    lacking = {column.name for column in force.columns if column.nullable and column.name not in names} if force else ()
    found = (
        [refusal for refusal in refusals(force, buffered_dataset.declaration) if refusal.part not in lacking]
        if force
        else []
    )
    if found:
        raise Conflict(
            f"dataset {buffered_dataset.name!r} cannot become this: {'; '.join(each.reason for each in found)}",
            where=f"publish.{buffered_dataset.name}",
            hint=found[0].suggestion,
        )
