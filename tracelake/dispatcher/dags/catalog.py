"""Reads what a DAG of an organisation may refer to: operators, runtimes, and the datasets published now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from tracelake.domain.buffered import Declaration, from_json
from tracelake.domain.dag.catalog import Catalog, Columns, OperatorSpec, PublishedDataset, RuntimeSpec
from tracelake.domain.dag.graph import reach
from tracelake.domain.dag.model import Storage
from tracelake.operators.registry import specs
from tracelake.store.queries import Queryable, Row, fetch_column, fetch_rows, queries


class Published(Row, frozen=True):
    id: UUID
    name: str
    dag_name: str
    storage: str | None
    columns: list[Mapping[str, Any]] | None


class LiveEdge(Row, frozen=True):
    """A dataset, and one that it is made from."""

    written: UUID
    read: UUID


class StoredDeclaration(Row, frozen=True):
    dag_name: str
    name: str
    declaration: Any


@dataclass(frozen=True)
class PublishedNow:
    """What decides how a DAG of an organisation is wired to others, as it is stored."""

    datasets: Sequence[Published]
    edges: frozenset[LiveEdge]
    """Which dataset each one is made from."""
    declarations: Mapping[tuple[str, str], Declaration]
    """By DAG and name."""

    def by_name(self) -> dict[str, PublishedDataset]:
        edges: dict[str, set[str]] = {}
        for edge in self.edges:
            edges.setdefault(str(edge.written), set()).add(str(edge.read))
        names = {str(dataset.id): dataset.name for dataset in self.datasets}
        return {
            dataset.name: PublishedDataset(
                dataset.dag_name,
                frozenset(names[n] for n in reach([str(dataset.id)], edges) if n in names),
                Storage(dataset.storage) if dataset.storage else None,
                _columns(dataset, self.declarations.get((dataset.dag_name, dataset.name))),
            )
            for dataset in self.datasets
        }


async def published_now(database: Queryable, org_id: UUID) -> PublishedNow:
    sql = queries("dags")
    datasets = await fetch_rows(database, sql["list_published_datasets"], Published, org_id)
    edges = frozenset(await fetch_rows(database, sql["list_live_edges"], LiveEdge, org_id))
    declared = await fetch_rows(database, queries("buffered")["list_declarations"], StoredDeclaration, org_id)
    return PublishedNow(
        sorted(datasets, key=lambda dataset: dataset.name),
        edges,
        {(row.dag_name, row.name): from_json(row.declaration) for row in declared},
    )


async def catalog(
    database: Queryable, org_id: UUID, runtimes: Mapping[str, RuntimeSpec], published: PublishedNow | None = None
) -> Catalog:
    """`published`: as it was read just now."""
    published = published or await published_now(database, org_id)
    alerts = frozenset(await fetch_column(database, queries("alerts")["list_definition_names"], org_id))
    roles = frozenset(await fetch_column(database, queries("dags")["list_role_slugs"], org_id))
    return Catalog(operators(), runtimes, published.by_name(), published.declarations, alerts, roles)


def operators() -> Mapping[str, OperatorSpec]:
    return specs()


def codes() -> Mapping[str, int]:
    """The version of the code of each operator whose outputs may be used again."""
    return {name: spec.code for name, spec in specs().items() if spec.reproduces is not None}


def _columns(dataset: Published, declared: Declaration | None) -> Columns | None:
    """As declared, or as first committed; None for a hot table, whose columns only the data database knows."""
    if declared is not None:
        return declared.names
    return None if dataset.columns is None else tuple(column["name"] for column in dataset.columns)
