"""Ids made from meaning: the same meaning, the same id; any other meaning, another."""

from __future__ import annotations

from itertools import combinations
from uuid import UUID

from tracelake.domain.ids import (
    DagName,
    DagVersionId,
    DatasetId,
    DatasetVersion,
    JobName,
    LineageHash,
    OrgId,
    TaskId,
    YamlHash,
    dag_version_id,
    dataset_id,
    event_id,
    generation_id,
    invalidation_id,
    job_id,
)

ORG, OTHER = OrgId(UUID(int=1)), OrgId(UUID(int=2))


def test_a_dataset_keeps_its_id_on_every_deploy() -> None:
    # Written down, because a change would orphan every dataset that exists.
    assert dataset_id(ORG, DagName("evm"), JobName("ingest"), 0) == UUID("14c1b6e2-0177-5ff8-98be-da52647e706c")


def test_ids_differ_when_any_of_their_inputs_differs() -> None:
    ids = [
        dataset_id(ORG, DagName("a"), JobName("b"), 0),
        dataset_id(OTHER, DagName("a"), JobName("b"), 0),
        dataset_id(ORG, DagName("a"), JobName("b"), 1),
        dataset_id(ORG, DagName("a"), JobName("bb"), 0),
        dataset_id(ORG, DagName("ab"), JobName("b"), 0),
        # Joined by a separator these two would be one.
        dataset_id(ORG, DagName('a","b'), JobName("c"), 0),
        dataset_id(ORG, DagName("a"), JobName('b","c'), 0),
        dag_version_id(ORG, DagName("a"), YamlHash("b")),
        job_id(DagVersionId(ORG), JobName("a")),
        generation_id(DatasetId(ORG), LineageHash("a")),
        event_id(TaskId(ORG), DatasetId(ORG), DatasetVersion(ORG), "a"),
        invalidation_id(DatasetId(ORG), DatasetVersion(ORG), "a", "commit:1"),
        invalidation_id(DatasetId(ORG), DatasetVersion(ORG), "a", "commit:2"),
    ]
    assert all(combination != other for combination, other in combinations(map(str, ids), 2))
