"""What can be known of a chain job before it runs is said when it is deployed, with its place and what to do."""

from __future__ import annotations

import json
from uuid import UUID

import pytest

from trace_platform.dispatcher.catalog import operators
from trace_platform.dispatcher.runtimes import runtime_specs
from trace_platform.domain.catalog import Catalog
from trace_platform.domain.dag import generation_ids, parse_dag
from trace_platform.domain.ids import OrgId
from trace_platform.errors import InvalidDag, Problem
from trace_platform.operators.registry import ON_WORKERS
from trace_platform.settings import RUNTIMES

DAG = """
name: d
defaults: {runtime: ecs_platform}
jobs:
  - {name: ask, operator: noop, runtime: dispatcher, source: {kind: manual}}
  - name: follow
    operator: block_follower
    source: {kind: always_on}
    config: {rpc_pool: dev}
    outputs: [blocks, transactions, logs]
  - name: job
"""
INGEST = "    operator: cryo_ingest\n    inputs: [{from: {job: ask}}]\n"
DECODE = "    operator: evm_decode\n    inputs: [{from: {job: ask}}]\n"
COMPACT = "    operator: parquet_compact\n"
HOT = "{from: {job: ask}}, {from: {job: follow, output: logs}, trigger: false}"


@pytest.mark.parametrize(
    ("job", "line", "reason", "suggestion"),
    [
        (
            INGEST + "    config: {rpc_pool: dev}\n    outputs: [blocks, logs]",
            14,
            "3 tables (blocks, transactions, logs) need as many outputs, and the job has 2",
            "outputs: [blocks, transactions, logs]",
        ),
        (
            INGEST + "    config: {rpc_pool: dev, tables: [blocks]}\n    outputs: [blocks, logs]",
            14,
            "1 table (blocks) need as many outputs, and the job has 2",
            "outputs: [blocks]",
        ),
        (
            INGEST + "    config: {rpc_pool: dev, tables: [logs, blocks]}\n    outputs: [blocks, logs]",
            14,
            "output 'blocks' would hold the logs: outputs stand in the order of tables",
            "outputs: [logs, blocks]",
        ),
        (
            COMPACT + "    config: {tables: [blocks, logs]}\n    outputs: [blocks, logs]\n    inputs: [" + HOT + "]",
            13,
            "2 hot tables and the input that says which ranges are 3 inputs, and the job has 2",
            "name the follower's outputs as inputs",
        ),
        (
            DECODE + "    config: {abi: erc20, events: [transfer, approval]}\n    outputs: [transfers]",
            14,
            "2 events cannot become 1 outputs",
            "outputs: [transfer, approval]",
        ),
        (
            DECODE + "    config: {abi: erc20, events: [swap]}",
            14,
            "the ABI has no event 'swap'",
            "it has transfer, approval",
        ),
        (
            DECODE + '    config: {abi: \'[{"type": "event"}]\', events: [swap]}',
            14,
            "/0/name: an event has a name",
            "",
        ),
        (
            DECODE + "    config: {abi_file: a.json, events: [swap]}",
            14,
            "abi_file is read where the DAG is deployed from",
            "",
        ),
    ],
)
def test_a_chain_job_that_cannot_work_is_refused_at_deploy(job: str, line: int, reason: str, suggestion: str) -> None:
    problem = refusal(DAG + job)
    assert reason in problem.reason
    assert suggestion in (problem.suggestion or "")
    assert problem.line == line


def test_a_follower_may_have_one_output_more_and_not_two() -> None:
    parse_dag(DAG.replace("[blocks, transactions, logs]", "[blocks, transactions, logs, final]") + NOOP, CATALOG)
    problem = refusal(DAG.replace("[blocks, transactions, logs]", "[blocks, transactions]") + NOOP)
    assert "need as many outputs, or 4, and the job has 2" in problem.reason


def test_a_follower_begins_at_a_block_that_there_can_be() -> None:
    problem = refusal(DAG.replace("{rpc_pool: dev}", "{rpc_pool: dev, start_block: -5}") + NOOP)
    assert "blocks are numbered from 0" in problem.reason
    assert (problem.line, problem.field) == (9, "jobs[1].config.start_block")


@pytest.mark.parametrize(
    ("job", "setting", "decides"),
    [
        ("follow", "poll_seconds: 7", False),
        ("follow", "batch: 7", False),
        ("follow", "start_block: 7", True),
        ("follow", "emit_strategy: per_block", True),
        ("follow", "confirmations: 7", True),
        ("ingest", "chunk: 7", False),
        ("compact", "chunk: 7", False),
        ("compact", "grace_seconds: 7", False),
        ("compact", "delete_after_compact: false", False),
    ],
)
def test_what_only_says_how_a_chain_job_works_makes_no_new_generation(job: str, setting: str, decides: bool) -> None:
    before = parse_dag(TUNED, CATALOG)
    after = parse_dag(TUNED.replace(f"name: {job}\n    config: {{", f"name: {job}\n    config: {{{setting}, "), CATALOG)
    assert after.yaml_hash != before.yaml_hash
    assert (generation_ids(after, ORG) != generation_ids(before, ORG)) == decides
    name, _, value = setting.partition(": ")
    [changed] = [one for one in after.jobs if one.name == job]
    assert str(changed.config[name]).lower() == value


def test_a_setting_that_does_not_count_is_one_of_the_operator() -> None:
    for name, one in ON_WORKERS.items():
        assert set(one.spec.tuning) <= set(one.config.model_fields), name


def test_an_abi_of_ones_own_is_part_of_the_config_and_so_of_its_hash() -> None:
    swap = json.dumps([{"type": "event", "name": "Swap", "inputs": []}])
    dag = parse_dag(f"{DAG}{DECODE}    config: {{abi: '{swap}', events: [swap]}}", CATALOG)
    assert json.loads(dag.jobs[-1].config["abi"])[0]["name"] == "Swap"


TUNED = """
name: d
defaults: {runtime: ecs_platform}
jobs:
  - name: ask
    operator: noop
    runtime: dispatcher
    source: {kind: manual}
  - name: follow
    config: {rpc_pool: dev, tables: [blocks]}
    operator: block_follower
    source: {kind: always_on}
    outputs: [blocks]
  - name: ingest
    config: {rpc_pool: dev, tables: [blocks]}
    operator: cryo_ingest
    inputs: [{from: {job: ask}}]
    outputs: [blocks]
  - name: compact
    config: {tables: [blocks]}
    operator: parquet_compact
    inputs: [{from: {job: ask}}, {from: {job: follow, output: blocks}, trigger: false}]
    outputs: [blocks]
"""
ORG = OrgId(UUID(int=1))
CATALOG = Catalog(operators(), runtime_specs(RUNTIMES))
NOOP = "    operator: noop\n    runtime: dispatcher\n    inputs: [{from: {job: ask}}]"


def refusal(text: str) -> Problem:
    with pytest.raises(InvalidDag) as refused:
        parse_dag(text, CATALOG)
    (problem,) = refused.value.problems
    return problem
