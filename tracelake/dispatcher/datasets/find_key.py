"""Finds the columns by which rows of a dataset are known: `unique_key` of its job, or what its operator says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from tracelake.dispatcher.dags.catalog import operators
from tracelake.store.queries import Queryable, Row, find_row, queries


class KeyFacts(Row, frozen=True):
    unique_key: list[str] | None
    operator: str
    config: Mapping[str, Any]
    output_index: int


async def find_key(database: Queryable, dataset: UUID, dag_version: UUID | None = None) -> list[str]:
    """In this version of its DAG, or in the active one. Empty: none is known."""
    facts = await find_row(database, queries("comparisons")["find_key_facts"], KeyFacts, dataset, dag_version)
    if facts is None:
        return []
    return list(facts.unique_key or _of_operator(facts))


def _of_operator(facts: KeyFacts) -> list[str]:
    spec = operators().get(facts.operator)
    if spec is None or spec.output_keys is None or spec.check_config(facts.config):
        return []
    keys = spec.output_keys(facts.config)
    return list(keys[facts.output_index]) if facts.output_index < len(keys) else []
