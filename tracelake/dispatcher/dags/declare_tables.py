"""Stores the declarations of a version's buffered datasets, with an outbox entry for the sink about each.

Part of an activation's transaction. Declarations only grow: a version that lacks columns of a newer one can be
activated again, and its writers leave them empty.
"""

from __future__ import annotations

import msgspec

from tracelake.domain.buffered import SPARK_TYPES, Declaration, from_json, incompatible_changes, to_json, widened
from tracelake.domain.dag.hashes import declared_ids, generation_ids
from tracelake.domain.dag.model import BufferedDataset, Dag
from tracelake.domain.ids import DatasetId, OrgId
from tracelake.errors import Conflict
from tracelake.store.queries import Connection, queries
from tracelake.wire.task.markers import ColumnEntry, hash_of_schema


async def declare_tables(connection: Connection, org: OrgId, dag: Dag) -> None:
    ids = declared_ids(dag, org)
    for dataset in sorted(dag.buffered, key=lambda dataset: dataset.name):
        await _declare(connection, org, dag, dataset, ids[dataset.name])


async def _declare(connection: Connection, org: OrgId, dag: Dag, dataset: BufferedDataset, id_: DatasetId) -> None:
    sql = queries("buffered")
    stored = await connection.fetchval(sql["lock_declaration"], id_, org)
    current = None if stored is None else from_json(stored)
    _refuse_contradiction(current, dataset)
    declaration = widened(current, dataset.declaration)
    if declaration == current:
        return
    columns = spark_columns(declaration)
    await connection.execute(
        sql["store_declaration"],
        id_,
        org,
        generation_ids(dag, org)[id_],
        dag.name,
        dataset.name,
        to_json(declaration),
        msgspec.to_builtins(columns),
        hash_of_schema(columns),
    )


def spark_columns(declaration: Declaration) -> list[ColumnEntry]:
    """The columns as Spark reads them."""
    return [
        ColumnEntry(name=column.name, type=SPARK_TYPES.get(column.type, column.type)) for column in declaration.columns
    ]


def _refuse_contradiction(current: Declaration | None, dataset: BufferedDataset) -> None:
    if current is None:
        return
    names = dataset.declaration.names
    lacking = {column.name for column in current.columns if column.nullable and column.name not in names}
    contradictions = [
        change for change in incompatible_changes(current, dataset.declaration) if change.part not in lacking
    ]
    if contradictions:
        raise Conflict(
            f"dataset {dataset.name!r} cannot become this: {'; '.join(refusal.reason for refusal in contradictions)}",
            where=f"publish.{dataset.name}",
            hint=contradictions[0].suggestion,
        )
