"""Manual sources and manual invalidations: accepted as any event, once per request."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest

from tests.support.dispatcher.control import PULL, Org, an_org, deployed_and_active, run_here
from tests.support.verbs import activate_dag, deploy_dag, invalidate, trigger
from tracelake.dispatcher.control import Control
from tracelake.domain.dag.model import JobOutput
from tracelake.domain.ids import JobName
from tracelake.errors import Conflict, InvalidRequest, NotFound

pytestmark = pytest.mark.anyio

OPERATORS = {"pull": PULL}

DAG = """
name: desk
defaults: {runtime: ecs_platform}
jobs:
  - {name: ask, operator: pull, source: {kind: manual}, outputs: [left, right]}
  - {name: tick, operator: pull, source: {kind: always_on}}
  - {name: work, operator: pull, inputs: [{from: {job: ask, output: left}}]}
publish: {asked: {job: ask, output: left}}
"""


async def tasks(control: Control) -> list[Any]:
    return [
        (row["name"], row["dedupe_key"].split(":")[0], row["partitions"])
        for row in await control.pool.fetch(
            "SELECT j.name, t.dedupe_key, t.partitions FROM tasks t JOIN jobs j ON j.id = t.job_id ORDER BY t.id"
        )
    ]


@pytest.mark.parametrize(
    ("scope", "kind", "partitions"),
    [
        ({"cursor": 12}, "cursor", None),
        ({"partition": "2025-06-01"}, "partition", ["2025-06-01"]),
        ({"start": 5, "end": 9}, "partition", ["5-9"]),
        ({}, "whole", None),
    ],
)
async def test_a_trigger_is_one_event_per_output_and_one_task_per_reader(
    control: Control, org: Org, scope: dict[str, Any], kind: str, partitions: list[str] | None
) -> None:
    await deployed_and_active(control, org, DAG)
    done = await trigger(control, org.id, "desk", "ask", **scope, request_id=uuid4())
    assert len(done.event_ids) == 2
    rows = await control.pool.fetch("SELECT id, origin::text, disposition::text FROM events ORDER BY id")
    assert {row["id"] for row in rows} == set(done.event_ids)
    assert {(row["origin"], row["disposition"]) for row in rows} == {("manual", "Route")}
    await control.drain().once()
    assert await tasks(control) == [("work", kind, partitions)]


async def test_the_same_request_again_is_the_same_events(control: Control, org: Org) -> None:
    await deployed_and_active(control, org, DAG)
    request = uuid4()
    done = await asyncio.gather(
        *(trigger(control, org.id, "desk", "ask", start=5, end=9, request_id=request) for _ in range(4))
    )
    assert len({outcome.event_ids for outcome in done}) == 1
    assert sorted(outcome.created for outcome in done) == [False, False, False, True]
    assert await control.pool.fetchval("SELECT count(*) FROM events") == 2
    assert await control.pool.fetchval("SELECT count(*) FROM outbox") == 2
    with pytest.raises(Conflict):
        await trigger(control, org.id, "desk", "ask", start=5, end=10, request_id=request)


async def test_a_request_repeated_after_an_activation_is_still_the_same(control: Control, org: Org) -> None:
    await deployed_and_active(control, org, DAG)
    request = uuid4()
    first = await trigger(control, org.id, "desk", "ask", cursor=1, request_id=request)
    changed = DAG.replace("source: {kind: manual}", "config: {n: 2}, source: {kind: manual}")
    await deployed_and_active(control, org, changed)
    again = await trigger(control, org.id, "desk", "ask", cursor=1, request_id=request)
    assert (again.event_ids, again.created) == (first.event_ids, False)


async def test_only_an_active_manual_source_is_triggered(control: Control, org: Org) -> None:
    with pytest.raises(NotFound, match="no DAG"):
        await trigger(control, org.id, "desk", "ask", cursor=1, request_id=uuid4())
    done = await deploy_dag(control, org.id, org.user, DAG)
    with pytest.raises(Conflict, match="no version"):
        await trigger(control, org.id, "desk", "ask", cursor=1, request_id=uuid4())
    await activate_dag(control, org.id, "desk", done.dag_version_id)
    with pytest.raises(NotFound, match="no job"):
        await trigger(control, org.id, "desk", "asc", cursor=1, request_id=uuid4())
    with pytest.raises(Conflict, match="always_on"):
        await trigger(control, org.id, "desk", "tick", cursor=1, request_id=uuid4())
    with pytest.raises(Conflict, match="reacts"):
        await trigger(control, org.id, "desk", "work", cursor=1, request_id=uuid4())
    other = await an_org(control.pool, "other")
    with pytest.raises(NotFound):
        await trigger(control, other.id, "desk", "ask", cursor=1, request_id=uuid4())
    with pytest.raises(InvalidRequest):
        await trigger(control, org.id, "desk", "ask", cursor=1, start=2, end=3, request_id=uuid4())
    assert await control.pool.fetchval("SELECT count(*) FROM events") == 0


async def test_an_invalidation_by_name_or_id_makes_one_task_per_reader(control: Control, org: Org) -> None:
    done = await deployed_and_active(control, org, DAG)
    left = done.datasets[JobOutput(JobName("ask"), 0)]
    request = uuid4()
    accepted = [
        await invalidate(control, org.id, org.user, name, start=5, end=9, reason="wrong rows", request_id=request)
        for name in ("asked", str(left), left)
    ]
    assert {item.invalidation_id for item in accepted} == {accepted[0].invalidation_id}
    assert [item.created for item in accepted] == [True, False, False]
    await control.drain().once()
    assert await tasks(control) == [("work", "partition", ["5-9"])]
    await invalidate(control, org.id, org.user, "asked", start=5, end=9, reason="again", request_id=uuid4())
    await control.drain().once()
    assert len(await tasks(control)) == 2


async def test_an_invalidated_label_is_processed_again_by_each_reader_and_no_other_label(
    control: Control, org: Org
) -> None:
    await deployed_and_active(control, org, DAG)
    for label in ("eu", "us"):
        await trigger(control, org.id, "desk", "ask", partition=label, request_id=uuid4())
    await control.drain().once()
    before = await tasks(control)
    request = uuid4()
    named = {"partition_key": "eu", "reason": "wrong rows"}
    for created in (True, False):
        done = await invalidate(control, org.id, org.user, "asked", **named, request_id=request)
        assert done.created is created
    await control.drain().once()
    assert await tasks(control) == [*before, ("work", "partition", ["eu"])]
    row = await control.pool.fetchrow(
        "SELECT t.input_versions ->> 'partition_key' AS key, s.task_id = t.id AS shared, v.block_range"
        " FROM tasks t JOIN data_invalidations v ON v.id = t.invalidation_id"
        " JOIN data_invalidation_jobs s ON s.invalidation_id = v.id AND s.job_id = t.job_id"
    )
    assert tuple(row or ()) == ("eu", True, None)


async def test_an_invalidated_label_is_passed_on_by_jobs_that_only_forward(control: Control, org: Org) -> None:
    joint = "  - {name: joint, operator: noop, runtime: dispatcher, inputs: [{from: {job: ask, output: left}}]}\n"
    behind = "  - {name: behind, operator: pull, inputs: [{from: {job: joint}}]}\n"
    await deployed_and_active(control, org, DAG.replace("publish:", f"{joint}{behind}publish:"))
    await trigger(control, org.id, "desk", "ask", partition="eu", request_id=uuid4())
    await run_here(control)
    await invalidate(control, org.id, org.user, "asked", partition_key="eu", reason="x", request_id=uuid4())
    await run_here(control)
    made = [item for item in await tasks(control) if item[0] == "behind"]
    assert made == [("behind", "partition", ["eu"])] * 2


@pytest.mark.parametrize(
    ("named", "refusal"),
    [
        ({"partition_key": "typo"}, NotFound),
        ({}, InvalidRequest),
        ({"partition_key": "eu", "start": 1, "end": 2}, InvalidRequest),
        ({"start": 1}, InvalidRequest),
    ],
)
async def test_an_invalidation_of_no_partition_is_refused(
    control: Control, org: Org, named: dict[str, Any], refusal: type[Exception]
) -> None:
    await deployed_and_active(control, org, DAG)
    await trigger(control, org.id, "desk", "ask", partition="eu", request_id=uuid4())
    with pytest.raises(refusal):
        await invalidate(control, org.id, org.user, "asked", **named, reason="x", request_id=uuid4())
    assert await control.pool.fetchval("SELECT count(*) FROM data_invalidations") == 0


async def test_an_invalidation_that_cannot_be_is_refused(control: Control, org: Org) -> None:
    done = await deploy_dag(control, org.id, org.user, DAG)
    left = done.datasets[JobOutput(JobName("ask"), 0)]
    with pytest.raises(Conflict):
        await invalidate(control, org.id, org.user, left, start=5, end=9, reason="x", request_id=uuid4())
    await activate_dag(control, org.id, "desk", done.dag_version_id)
    for start, end, reason in ((9, 5, "x"), (-1, 5, "x"), (5, 9, " ")):
        with pytest.raises(InvalidRequest):
            await invalidate(control, org.id, org.user, left, start=start, end=end, reason=reason, request_id=uuid4())
    other = await an_org(control.pool, "other")
    for name in ("asked", left, "nothing", str(uuid4())):
        with pytest.raises(NotFound):
            await invalidate(control, other.id, other.user, name, start=5, end=9, reason="x", request_id=uuid4())
