"""A deploy stores what the columns of every output of a job are made from."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.dispatcher.control import PULL, an_org, control_for, deployed_and_active
from tests.support.operators import registered
from tests.support.verbs import deploy_dag
from tracelake.errors import InvalidDag

pytestmark = pytest.mark.anyio

DAG = """
name: tokens
jobs:
  - {name: fetch, operator: pull, runtime: ecs_platform, source: {kind: manual}, outputs: [logs]}
  - name: decode
    operator: evm_decode
    runtime: ecs_platform
    inputs: [{from: {job: fetch, output: logs}, name: logs}]
    outputs: [transfer, approval]
    config: {abi: erc20, events: [transfer, approval]}
"""


async def test_the_lineage_of_each_output_is_stored(state_db: str, queue_db: str, tmp_path: Path) -> None:
    async with control_for(state_db, queue_db, tmp_path) as control:
        with registered(pull=PULL):
            await deployed_and_active(control, await an_org(control.pool), DAG)
        rows = await control.pool.fetch(
            "SELECT DISTINCT d.producer_output_index AS output, l.input_column FROM column_lineage l"
            " JOIN datasets d ON d.id = l.output_dataset_uuid WHERE l.input_column IN ('topic1', 'data') ORDER BY 1, 2"
        )
        assert [tuple(row) for row in rows] == [(0, "data"), (0, "topic1"), (1, "data"), (1, "topic1")]


SCORED = """
name: scores
jobs:
  - {{name: fetch, operator: pull, runtime: ecs_platform, source: {{kind: manual}}, outputs: [orders]}}
  - name: score
    operator: python
    runtime: ecs_platform
    inputs: [{{from: {{job: fetch, output: orders}}, name: orders}}]
    outputs: {outputs}
    config: {{function: "my_models:score", lineage: {lineage}}}
"""


@pytest.mark.parametrize(
    ("outputs", "lineage"),
    [("[scored]", "{fee: [orders.amount, orders.*]}"), ("[other, scored]", "{scored.fee: [orders.amount, orders.*]}")],
)
async def test_the_lineage_that_a_python_job_declares_is_stored_and_changes_no_generation(
    state_db: str, queue_db: str, tmp_path: Path, outputs: str, lineage: str
) -> None:
    async with control_for(state_db, queue_db, tmp_path) as control:
        org = await an_org(control.pool)
        with registered(pull=PULL):
            before = await deployed_and_active(control, org, SCORED.format(outputs=outputs, lineage="{}"))
            after = await deployed_and_active(control, org, SCORED.format(outputs=outputs, lineage=lineage))
        assert before.dag_version_id != after.dag_version_id
        assert before.datasets == after.datasets
        rows = await control.pool.fetch(
            "SELECT l.output_column, l.input_column, d.producer_output_index AS output FROM column_lineage l"
            " JOIN datasets d ON d.id = l.output_dataset_uuid ORDER BY 2"
        )
        assert [tuple(row) for row in rows] == [("fee", name, outputs.count(",")) for name in ("*", "amount")]
        generations = "SELECT count(DISTINCT dataset_version), count(*) FROM dag_version_datasets"
        found = await control.pool.fetchrow(generations)
        assert found is not None
        assert found[0] * 2 == found[1], "both versions serve the same generations"


@pytest.mark.parametrize(
    ("outputs", "lineage", "code"),
    [
        ("[scored]", "{fee: [order.amount]}", "unknown_input"),
        ("[scored]", "{fee: [orders]}", "bad_config"),
        ("[other, scored]", "{fee: [orders.amount]}", "unknown_output"),
        ("[other, scored]", "{nope.fee: [orders.amount]}", "unknown_output"),
    ],
)
async def test_a_declared_lineage_of_what_is_not_there_is_refused(
    state_db: str, queue_db: str, tmp_path: Path, *, outputs: str, lineage: str, code: str
) -> None:
    async with control_for(state_db, queue_db, tmp_path) as control:
        org = await an_org(control.pool)
        with registered(pull=PULL), pytest.raises(InvalidDag) as refusal:
            await deploy_dag(control, org.id, org.user, SCORED.format(outputs=outputs, lineage=lineage))
    assert [problem.code for problem in refusal.value.problems] == [code]
