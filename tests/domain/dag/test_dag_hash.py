"""Hashes and generations: what counts as a change, and how far it goes."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any
from uuid import UUID

import pytest

from tests.support.job_fields import HOW_IT_RUNS
from tracelake.domain.dag.catalog import Catalog
from tracelake.domain.dag.hashes import config_hash, dataset_ids, generation_ids
from tracelake.domain.dag.model import (
    Activation,
    Bootstrap,
    DagInput,
    DagOutput,
    ExecutionStrategy,
    Job,
    JobOutput,
    Source,
    SourceKind,
    Storage,
    Udf,
    UpdateStrategy,
)
from tracelake.domain.dag.parse import parse_dag
from tracelake.domain.ids import JobName, OrgId

ORG = OrgId(UUID(int=7))

DAG = """
name: shop
defaults: {runtime: platform}
jobs:
  - name: pull
    operator: pull
    source: {kind: manual}
    outputs: [orders, items]
  - name: clean
    operator: sql
    config: {query: SELECT 1}
    inputs: [{from: {job: pull, output: orders}, where: "a = 1 and b = 2"}]
  - name: total
    operator: sql
    inputs: [{from: {job: clean}}]
  - name: other
    operator: sql
    inputs: [{from: {job: pull, output: items}}, {from: {dataset: prices}}]
publish:
  clean_orders: {job: clean}
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("name: shop\n", "# a comment\nname:    'shop'\n\n"),
        ("defaults: {runtime: platform}\n", 'defaults:\n  "runtime": platform\n'),
        ("    operator: pull\n    source: {kind: manual}\n", "    source:\n      kind: manual\n    operator: pull\n"),
        ("a = 1 and b = 2", "a = 1 and b = 2"),
    ],
)
def test_formatting_does_not_change_the_yaml_hash(old: str, new: str, catalog: Catalog) -> None:
    original, other = parse_dag(DAG, catalog), parse_dag(DAG.replace(old, new), catalog)
    assert original.yaml_hash == other.yaml_hash
    assert original.canonical == other.canonical
    assert len(original.yaml_hash) == 64


def test_the_yaml_hash_is_that_of_the_file_not_of_the_defaults_of_a_release(catalog: Catalog) -> None:
    explicit = parse_dag(DAG.replace("{runtime: platform}", "{runtime: platform, max_attempts: 3}"), catalog)
    assert explicit.jobs == parse_dag(DAG, catalog).jobs
    assert explicit.yaml_hash != parse_dag(DAG, catalog).yaml_hash
    assert generation_ids(explicit, ORG) == generation_ids(parse_dag(DAG, catalog), ORG)


def changed(old: str, new: str, catalog: Catalog) -> set[str]:
    """The jobs whose datasets get a new generation."""
    assert old in DAG
    before, after = parse_dag(DAG, catalog), parse_dag(DAG.replace(old, new, 1), catalog)
    old_ids, new_ids = generation_ids(before, ORG), generation_ids(after, ORG)
    return {
        output.job for output, dataset in dataset_ids(after, ORG).items() if old_ids.get(dataset) != new_ids[dataset]
    }


@pytest.mark.parametrize(
    ("old", "new", "jobs"),
    [
        # What decides the bytes: the job and everything downstream of it.
        ("SELECT 1", "SELECT 2", {"clean", "total"}),
        ("a = 1 and b = 2", "a = 1", {"clean", "total"}),
        (', where: "a = 1 and b = 2"', "", {"clean", "total"}),
        ("output: orders", "output: items", {"clean", "total"}),
        ("job: clean}}]", "job: clean}, name: c}]", {"total"}),
        ("name: total\n", "name: total\n    execution_strategy: PerPartition\n", {"total"}),
        ("name: total\n", "name: total\n    outputs: [{name: t, storage: postgres}]\n", {"total"}),
        ("name: total\n", "name: total\n    unique_key: [a]\n    update_strategy: append\n", {"total"}),
        ("kind: manual}\n", "kind: manual}\n    config: {size: 2}\n", {"pull", "clean", "total", "other"}),
        ("dataset: prices", "dataset: rates", {"other"}),
        # What does not.
        ("kind: manual", "kind: always_on", set()),
        ("runtime: platform", "runtime: platform, max_attempts: 9, timeout_seconds: 7, priority: bulk", set()),
        ("runtime: platform", "runtime: platform, scaling: {max_concurrency: 1}, max_queue_depth: 5", set()),
        ("a = 1 and b = 2", "(b = 2) AND a=1", set()),
        ('where: "a = 1 and b = 2"', "where: {b: 2, a: 1}", set()),
        ("job: pull, output: items", "job: pull, output: 1", set()),
        ("from: {job: clean}", "from: {dataset: clean_orders}", set()),
        ("clean_orders", "tidy_orders", set()),
        ("name: total\n", "name: total\n    secrets: [KEY]\n", set()),
        ("name: total\n", "name: total\n    cutover: {max_changed_rows: 1%}\n", set()),
    ],
)
def test_a_change_goes_downstream_and_no_further(old: str, new: str, jobs: set[str], catalog: Catalog) -> None:
    assert changed(old, new, catalog) == jobs


JOB = Job(JobName("a"), Activation.REACTIVE, "platform", "sql")
DECIDING: dict[str, Any] = {
    "runtime": "dispatcher",
    "operator": "join",
    "config": {"query": "SELECT 2"},
    "inputs": (DagInput("x", JobOutput(JobName("b"), 0)),),
    "outputs": (DagOutput(0, "a", Storage.POSTGRES),),
    "update_strategy": UpdateStrategy.APPEND,
    "unique_key": ("id",),
    "execution_strategy": ExecutionStrategy.PER_PARTITION,
    "udf": Udf("a.zip", "0" * 64, "main.handler"),
}
NOT_DECIDING: dict[str, Any] = {
    **HOW_IT_RUNS,  # the id of a dataset follows the name of its job, so its hash need not
    "source": Source(SourceKind.MANUAL),
    "bootstrap": Bootstrap(reset_outputs=True),
    "secrets": ("KEY",),
}


def test_every_field_of_a_job_decides_the_bytes_or_does_not() -> None:
    assert {field.name for field in fields(Job)} == DECIDING.keys() | NOT_DECIDING.keys()
    for name, value in DECIDING.items():
        assert config_hash(replace(JOB, **{name: value})) != config_hash(JOB), name
    for name, value in NOT_DECIDING.items():
        assert config_hash(replace(JOB, **{name: value})) == config_hash(JOB), name


def test_settings_that_only_say_how_a_job_works_do_not_count() -> None:
    tuned, tuning = replace(JOB, config={"query": "SELECT 1", "rows_at_once": 5}), ("rows_at_once",)
    assert config_hash(tuned, tuning) == config_hash(replace(JOB, config={"query": "SELECT 1"}))
    assert config_hash(tuned, tuning) != config_hash(tuned)
    assert config_hash(tuned, tuning) != config_hash(replace(tuned, config={"rows_at_once": 5}), tuning)


def test_a_bundle_with_other_bytes_is_another_job(catalog: Catalog) -> None:
    text = """
name: t
jobs:
  - {name: p, operator: pull, runtime: platform, source: {kind: manual}}
  - {name: u, operator: bundle, runtime: lambda, inputs: [{from: {job: p}}], udf: {bundle: a.zip, sha256: HASH}}
"""
    first, same, other = (
        config_hash(parse_dag(text.replace("a.zip", name).replace("HASH", digest * 64), catalog).jobs[1])
        for name, digest in (("a.zip", "a"), ("b.zip", "a"), ("a.zip", "b"))
    )
    assert first == same
    assert first != other


def test_datasets_keep_their_ids_when_everything_about_them_changes(catalog: Catalog) -> None:
    before = dataset_ids(parse_dag(DAG, catalog), ORG)
    after = dataset_ids(parse_dag(DAG.replace("SELECT 1", "SELECT 2").replace("a = 1", "c = 3"), catalog), ORG)
    assert before == after
    assert set(before) == {
        JobOutput(JobName(job), output)
        for job, output in (("pull", 0), ("pull", 1), ("clean", 0), ("total", 0), ("other", 0))
    }
    assert dataset_ids(parse_dag(DAG, catalog), OrgId(UUID(int=8))).items().isdisjoint(before.items())
