"""What a DAG of an organisation may name: operators and runtimes that exist, and the datasets published now."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

import asyncpg
import msgspec

from tracelake.dispatcher.runtimes.known import INVOKERS, runtime_specs
from tracelake.domain.buffered import Declaration, from_json
from tracelake.domain.dag.catalog import Catalog, Columns, OperatorSpec, PublishedDataset
from tracelake.domain.dag.graph import reach
from tracelake.domain.dag.model import Storage
from tracelake.operators.registry import specs
from tracelake.settings import RUNTIMES, RuntimeSettings
from tracelake.store.queries import queries


async def catalog(
    pool: asyncpg.Pool | asyncpg.pool.PoolConnectionProxy,
    org_id: UUID,
    runtimes: Mapping[str, RuntimeSettings] = RUNTIMES,
    invokers: frozenset[str] = INVOKERS,
) -> Catalog:
    sql = queries("dags")
    rows = await pool.fetch(sql["published_datasets"], org_id)
    edges: dict[str, set[str]] = {}
    for edge in await pool.fetch(sql["live_edges"], org_id):
        edges.setdefault(str(edge["made"]), set()).add(str(edge["read"]))
    names = {str(row["id"]): row["name"] for row in rows}
    declared = {
        (row["dag_name"], row["name"]): from_json(msgspec.json.decode(row["declaration"]))
        for row in await pool.fetch(queries("buffered")["declarations"], org_id)
    }
    published = {
        row["name"]: PublishedDataset(
            row["dag_name"],
            frozenset(names[n] for n in reach([str(row["id"])], edges) if n in names),
            Storage(row["storage"]) if row["storage"] else None,
            _columns(row, declared.get((row["dag_name"], row["name"]))),
        )
        for row in rows
    }
    alerts = frozenset(row["name"] for row in await pool.fetch(queries("alerts")["definition_names"], org_id))
    roles = frozenset(row["slug"] for row in await pool.fetch(sql["role_slugs"], org_id))
    return Catalog(operators(), runtime_specs(runtimes, invokers), published, declared, alerts, roles)


def _columns(row: asyncpg.Record, declared: Declaration | None) -> Columns | None:
    """As declared, or as it was first committed; of a hot table that is known only where its rows lie."""
    if declared is not None:
        return declared.names
    return None if row["columns"] is None else tuple(batch["name"] for batch in msgspec.json.decode(row["columns"]))


def operators() -> Mapping[str, OperatorSpec]:
    return specs()
