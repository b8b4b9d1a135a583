"""A DAG that is right: every field read, every default filled in, every input wired."""

from __future__ import annotations

import json

import pytest

from tracelake.domain.dag.catalog import Catalog
from tracelake.domain.dag.graph import job_order
from tracelake.domain.dag.model import (
    Activation,
    Bootstrap,
    DagInput,
    DagOutput,
    ExecutionStrategy,
    ForeignDataset,
    Job,
    JobOutput,
    Publication,
    Retry,
    Scaling,
    Source,
    SourceKind,
    Storage,
    Udf,
    UpdateStrategy,
)
from tracelake.domain.dag.parse import parse_dag
from tracelake.domain.dag.yaml_nodes import read_name
from tracelake.domain.filter.parse import parse_where
from tracelake.domain.flow.pressure import Priority
from tracelake.domain.ids import DatasetName, JobName
from tracelake.domain.sources.decide_slots import Overlap
from tracelake.domain.sources.schedule import Dst
from tracelake.domain.sources.signatures import HookScheme

EVERYTHING = """
# Every field at least once.
name: shop
defaults:
  runtime: platform
  timeout_seconds: 10m
  scaling: {max_concurrency: 8}
jobs:
  - name: alerts          # read before it is written: order in the file is free
    operator: sql
    config:
      query: >-
        SELECT *
        FROM orders
    inputs:
      - from: {job: pull, output: orders}
        where: {severity: critical}
      - from: {dataset: prices}
        name: current_prices
        where: "price > 0.5 AND NOT stale = true"
    update_strategy: append
    unique_key: [order_id]
    execution_strategy: PerPartition
    idle_timeout: 5m
    priority: bulk
    max_queue_depth: 1000
    max_queue_age: 1h
    timeout_seconds: 90
    heartbeat_timeout_seconds: 60s
    heartbeat_interval_seconds: 10
    max_attempts: 5
    retry: {backoff: 1s, max_backoff: 1m}
    secrets: [API_KEY]
    scaling: {max_concurrency: 2}
  - name: pull
    activation: source
    operator: pull
    source: {kind: cron, schedule: "0 0 * * *"}
    bootstrap: {reset_outputs: true}
    config: {size: 3}
    outputs: [orders, {name: items, storage: parquet}]
  - name: score
    operator: bundle
    runtime: lambda
    inputs: [{from: {dataset: daily}}]
    udf:
      bundle: team/score-1.2.zip
      sha256: 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
    idle_timeout: never
publish:
  - {name: daily, job: pull, output: 1, read_roles: [finance]}
  - {name: shop_alerts, job: alerts}
"""


def test_every_field_is_read(catalog: Catalog) -> None:
    dag = parse_dag(EVERYTHING, catalog)
    alerts, pull, score = dag.jobs
    assert alerts == Job(
        name=JobName("alerts"),
        activation=Activation.REACTIVE,
        runtime="platform",
        operator="sql",
        execution_strategy=ExecutionStrategy.PER_PARTITION,
        idle_timeout_seconds=300,
        config={"query": "SELECT * FROM orders"},
        inputs=(
            DagInput("orders", JobOutput(JobName("pull"), 0), parse_where("severity = 'critical'")),
            DagInput(
                "current_prices",
                ForeignDataset(DatasetName("prices")),
                parse_where("price > 0.5 and not stale = true"),
            ),
        ),
        outputs=(DagOutput(0, "alerts", Storage.POSTGRES),),
        update_strategy=UpdateStrategy.APPEND,
        unique_key=("order_id",),
        scaling=Scaling(2),
        priority=Priority.BULK,
        max_queue_depth=1000,
        max_queue_age_seconds=3600,
        timeout_seconds=90,
        heartbeat_timeout_seconds=60,
        heartbeat_interval_seconds=10,
        max_attempts=5,
        retry=Retry(1, 60),
        secrets=("API_KEY",),
    )
    assert pull == Job(
        name=JobName("pull"),
        activation=Activation.SOURCE,
        runtime="platform",
        operator="pull",
        source=Source(
            SourceKind.CRON,
            schedule="0 0 * * *",
            tz="UTC",
            dst=Dst.RUN_AFTER,
            overlap=Overlap.SKIP,
            catch_up_seconds=3600,
            jitter_seconds=0,
            pause_on_failure=False,
        ),
        bootstrap=Bootstrap(reset_outputs=True),
        config={"size": 3},
        outputs=(DagOutput(0, "orders", Storage.PARQUET), DagOutput(1, "items", Storage.PARQUET)),
        scaling=Scaling(8),
        timeout_seconds=600,
    )
    assert score.udf == Udf("team/score-1.2.zip", "0123456789abcdef" * 4, "main.handler")
    assert score.inputs == (DagInput("items", JobOutput(JobName("pull"), 1)),)
    assert score.idle_timeout_seconds is None
    assert dag.publish == (
        Publication(DatasetName("daily"), JobName("pull"), 1, ("finance",)),
        Publication(DatasetName("shop_alerts"), JobName("alerts"), 0),
    )


SMALLEST = """
name: tiny
jobs:
  - {name: pull, operator: pull, runtime: platform, source: {kind: manual}}
  - {name: copy, operator: sql, runtime: platform, inputs: [{from: {job: pull}}]}
"""


def test_every_default_is_filled_in(catalog: Catalog) -> None:
    pull, copy = parse_dag(SMALLEST, catalog).jobs
    assert pull.activation is Activation.SOURCE
    assert pull.execution_strategy is None
    assert copy == Job(
        name=JobName("copy"),
        activation=Activation.REACTIVE,
        runtime="platform",
        operator="sql",
        execution_strategy=ExecutionStrategy.PER_UPDATE,
        inputs=(DagInput("pull", JobOutput(JobName("pull"), 0)),),
        outputs=(DagOutput(0, "copy", Storage.PARQUET),),
        timeout_seconds=3600,
    )
    assert (copy.heartbeat_timeout_seconds, copy.heartbeat_interval_seconds, copy.max_attempts) == (120, 30, 3)
    assert copy.retry == Retry(30, 600)


def test_json_is_yaml(catalog: Catalog) -> None:
    job = {"name": "p", "operator": "pull", "runtime": "platform", "source": {"kind": "manual"}}
    assert parse_dag(json.dumps({"name": "j", "jobs": [job]}), catalog).name == "j"


@pytest.mark.parametrize(
    ("outputs", "names"),
    [("", ["a"]), ("outputs: 1", ["a"]), ("outputs: 2", ["a_0", "a_1"]), ("outputs: [x, {name: y}]", ["x", "y"])],
)
def test_outputs_are_named_or_counted(outputs: str, names: list[str], catalog: Catalog) -> None:
    head = "name: t\njobs:\n  - name: a\n    operator: pull\n    runtime: platform\n    source: {kind: manual}\n"
    text = f"{head}    {outputs}\n"
    (job,) = parse_dag(text, catalog).jobs
    assert [output.name for output in job.outputs] == names
    assert [output.index for output in job.outputs] == list(range(len(names)))


def test_what_an_operator_must_have_or_cannot_have_is_the_default(catalog: Catalog) -> None:
    text = """
name: t
defaults: {runtime: platform, timeout_seconds: 5, execution_strategy: PerPartition, idle_timeout: 0}
jobs:
  - {name: follow, operator: follow, source: {kind: always_on}, unique_key: [n], update_strategy: append}
  - {name: check, operator: check, inputs: [{from: {job: follow}}]}
  - {name: hook, operator: pull, source: {kind: webhook, scheme: standard, secret: hook_key}}
"""
    follow, check, hook = parse_dag(text, catalog).jobs
    assert [output.storage for output in follow.outputs] == [Storage.POSTGRES]
    assert follow.timeout_seconds is None  # it never ends, so the default for the others is not for it
    assert follow.execution_strategy is None
    assert check.outputs == ()
    assert check.idle_timeout_seconds == 0
    assert hook.source == Source(
        SourceKind.WEBHOOK,
        scheme=HookScheme.STANDARD,
        secret="hook_key",
        tolerance_seconds=300,
        max_bytes=256 * 1024,
    )


def test_a_name_this_dag_published_before_is_still_its_own(catalog: Catalog) -> None:
    text = SMALLEST.replace("tiny", "shop") + "publish: {shop_orders: {job: copy}}"
    assert parse_dag(text, catalog).publish == (Publication(DatasetName("shop_orders"), JobName("copy"), 0),)


CHAIN = """
name: chain
defaults: {runtime: platform}
jobs:
  - {name: d, operator: join, inputs: [{from: {job: b}}, {from: {job: c}}]}
  - {name: c, operator: sql, inputs: [{from: {job: a}}]}
  - {name: b, operator: sql, inputs: [{from: {job: a}}]}
  - {name: a, operator: pull, source: {kind: manual}}
  - {name: z, operator: pull, source: {kind: manual}}
"""


def test_jobs_are_ordered_upstream_first_and_else_as_in_the_file(catalog: Catalog) -> None:
    dag = parse_dag(CHAIN, catalog)
    assert job_order(dag) == ("a", "c", "b", "d", "z")


def test_a_chain_of_a_thousand_jobs(catalog: Catalog) -> None:
    rows = [f"- {{name: j{i}, operator: sql, inputs: [{{from: {{job: j{i - 1}}}}}]}}" for i in range(1, 1000)]
    head = "name: long\ndefaults: {runtime: platform}\njobs:\n- {name: j0, operator: pull, source: {kind: manual}}\n"
    dag = parse_dag(head + "\n".join(reversed(rows)), catalog)
    assert job_order(dag) == tuple(f"j{i}" for i in range(1000))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("name: a\njobs: [", "a"),
        ("jobs: [{name: b}]\nname: a\n", "a"),
        ("name: [a]\n", None),
        ("name: 5\n", None),
        ("- name: a\n", None),
        ("", None),
        ("x: 1\n", None),
    ],
)
def test_the_name_of_a_document_is_read_without_the_rest(text: str, name: str | None) -> None:
    assert read_name(text) == name
