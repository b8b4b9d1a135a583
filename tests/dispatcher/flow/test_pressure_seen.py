"""A pause by pressure as it is seen: `why` and the metrics name the queue that is its cause, and what waits for it."""

from __future__ import annotations

from uuid import uuid4

import pytest

from tests.support.dispatcher.control import PULL, Org, deployed_and_active
from tests.support.dispatcher.job_chain import drained
from tests.support.metrics import counted
from tests.support.verbs import pause_job, resume_job, trigger
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.flow.apply_pressure import ApplyPressure
from tracelake.dispatcher.read_gauges import Gauges
from tracelake.dispatcher.why.explain import explain
from tracelake.settings import FlowSettings
from tracelake.wire.user.why import Explanation, Stop, WhyQuery

pytestmark = pytest.mark.anyio

OPERATORS = {"pull": PULL}

DAG = """
name: shop
defaults: {runtime: ecs_platform}
jobs:
  - {name: ask, operator: pull, source: {kind: manual}}
  - {name: load, operator: pull, inputs: [{from: {job: ask}}]}
  - {name: slow, operator: pull, max_queue_depth: 3, inputs: [{from: {job: load}}]}
publish: {asked: {job: ask}, loaded: {job: load}}
"""
FILL = """
INSERT INTO tasks (org_id, job_id, dedupe_key, timeout_seconds, woken_at)
SELECT org_id, id, n::text, 3600, now() FROM jobs, generate_series(1, 3) AS n WHERE name = 'slow'
"""
BECAUSE = "paused because 3 tasks of shop.slow were queued (limit 3)"


async def under_pressure(control: Control, org: Org) -> None:
    """The queue of `slow` pauses the jobs above it, and an event waits for `load`."""
    await deployed_and_active(control, org, DAG)
    await control.pool.execute(FILL)
    await a_pass(control)
    await trigger(control, org.id, "shop", "ask", start=0, end=9, request_id=uuid4())
    await drained(control)


async def a_pass(control: Control) -> None:
    await ApplyPressure(control.pool, control.after_commit, FlowSettings(release_queue_depth=1)).once()
    await drained(control)


async def why(control: Control, org: Org, dataset: str, partition: str | None = None) -> Explanation:
    return await explain(control.pool, org.as_user, WhyQuery(dataset=dataset, partition=partition))


async def stopped(control: Control, org: Org, dataset: str, partition: str | None = None) -> Stop:
    found = (await why(control, org, dataset, partition)).stopped
    assert found is not None
    return found


async def test_why_names_the_queue_that_pauses_the_job_of_a_dataset_and_of_a_partition(
    control: Control, org: Org
) -> None:
    await under_pressure(control, org)
    dataset = await stopped(control, org, "loaded")
    assert (dataset.rule, dataset.sentence) == ("paused", f"shop.load is {BECAUSE}; 1 event waits.")
    assert dataset.hint == "it resumes by itself; `trace job pauses` lists what is paused"
    partition = await stopped(control, org, "loaded", "0-9")
    assert (partition.rule, partition.sentence) == ("paused", f"The event waits: shop.load is {BECAUSE}.")
    assert partition.hint == dataset.hint, "what it names can be typed"
    event = await why(control, org, "asked", "0-9")
    assert event.steps[-1].sentence == "shop.load reads asked, and is paused: the event waits."


async def test_why_says_how_a_job_that_is_paused_by_hand_goes_on(control: Control, org: Org) -> None:
    await deployed_and_active(control, org, DAG)
    await pause_job(control, org.as_user, "shop", "load")
    for first in (0, 10):
        await trigger(control, org.id, "shop", "ask", start=first, end=first + 9, request_id=uuid4())
    await drained(control)
    by_hand = await stopped(control, org, "loaded", "10-19")
    assert (by_hand.sentence, by_hand.hint) == (
        "The event waits: shop.load is paused by hand.",
        "`trace job resume shop load`",
    )
    await resume_job(control, org.as_user, "shop", "load")
    await a_pass(control)
    behind = await stopped(control, org, "loaded", "10-19")
    assert behind.rule == "held"
    assert "waits for those before it" in behind.sentence


async def test_metrics_count_what_is_paused_by_its_reason_and_the_events_that_wait(control: Control, org: Org) -> None:
    async def seen() -> tuple[float, float, float]:
        await Gauges(control.pool, control.queue, control.runtimes, control.metrics).refresh()
        job = {"org": str(org.id), "dag": "shop", "job": "load"}
        return (
            counted(control.metrics, "trace_jobs_paused", **job, reason="depth"),
            counted(control.metrics, "trace_jobs_paused", **job),
            counted(control.metrics, "trace_events_held", **job),
        )

    await deployed_and_active(control, org, DAG)
    assert await seen() == (0, 0, 0)
    await under_pressure(control, org)
    assert await seen() == (1, 1, 1)
    await control.pool.execute("UPDATE tasks SET status = 'Canceled', completed_at = now(), cancel_reason = 'x'")
    await a_pass(control)
    assert await seen() == (0, 0, 0)
