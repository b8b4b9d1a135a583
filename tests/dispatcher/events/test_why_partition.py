"""`trace why DATASET PARTITION` of datasets that consist of events alone, and the rule for each way a chain can end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from tests.support import ROOT
from tests.support.dispatcher.control import PULL, Org, an_org, control_for, deployed_and_active, run_here
from tests.support.dispatcher.job_chain import claimed, completion
from tests.support.operators import registered
from tests.support.verbs import cancel_task, trigger
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.why.explain import explain
from tracelake.store.identity import User
from tracelake.wire.user.why import Explanation, WhyQuery

pytestmark = pytest.mark.anyio
RANGES = (ROOT / "dags" / "ranges.yaml").read_text()
WORK = """
name: shop
defaults: {runtime: dispatcher}
jobs:
  - {name: ask, operator: noop, source: {kind: manual}}
  - {name: do, operator: pull, runtime: ecs_platform, inputs: [{from: {job: ask}FILTER}]SCALING}
publish:
  asked: {job: ask}
  done: {job: do}
"""


@dataclass(frozen=True)
class QueryAnswerer:
    control: Control
    org: Org

    async def why(self, dataset: str, partition: str) -> Explanation:
        user = User(self.org.user, self.org.id, "acme", None, "admin")
        return await explain(self.control.pool, user, WhyQuery(dataset=dataset, partition=partition))

    async def rule(self, dataset: str, partition: str) -> str | None:
        stopped = (await self.why(dataset, partition)).stopped
        return None if stopped is None else stopped.rule

    async def trigger(self, dag: str, start: int, end: int, *, run: bool = True) -> None:
        await trigger(self.control, self.org.id, dag, "ask", start=start, end=end, request_id=uuid4())
        if run:
            await run_here(self.control)

    async def deploy(self, filter_: str = "", scaling: str = "") -> None:
        text = WORK.replace("FILTER", filter_).replace("SCALING", scaling)
        await deployed_and_active(self.control, self.org, text)

    async def tasks(self) -> list[UUID]:
        rows = await self.control.pool.fetch(
            "SELECT t.id FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = 'do' ORDER BY t.id"
        )
        return [row["id"] for row in rows]


@pytest.fixture
async def answerer(state_db: str, queue_db: str, tmp_path: Path) -> AsyncIterator[QueryAnswerer]:
    async with control_for(state_db, queue_db, tmp_path) as control:
        with registered(pull=PULL):
            yield QueryAnswerer(control, await an_org(control.pool))


async def test_why_explains_the_whole_chain_of_a_dataset_of_events_alone(answerer: QueryAnswerer) -> None:
    await deployed_and_active(answerer.control, answerer.org, RANGES)
    await answerer.trigger("ranges", 0, 999)
    explanation = await answerer.why("joined", "0-999")
    assert explanation.stopped is None
    assert [step.kind for step in explanation.steps] == ["event", "rule", "task", "attempt", "event", "rule", "task"]
    assert "joined has 0-999" in explanation.verdict
    assert "ranges.note" in explanation.verdict
    cut = await answerer.why("pieces", "0-49")
    assert cut.stopped is None
    assert "ranges.cut" in cut.steps[1].sentence
    triggered = await answerer.why("asked", "0-999")  # a trigger: no task made it
    assert [step.kind for step in triggered.steps] == ["event", "rule", "task"]
    assert "manual trigger" in triggered.steps[0].sentence
    assert (await answerer.why("joined", "100-199")).steps == explanation.steps  # a range within it, by the same event


async def test_ranges_that_do_not_cover_the_whole_yet_are_named(answerer: QueryAnswerer) -> None:
    await deployed_and_active(answerer.control, answerer.org, RANGES)
    assert await answerer.rule("joined", "0-999") == "no_event"
    await answerer.trigger("ranges", 0, 499)
    explanation = await answerer.why("joined", "0-999")
    assert explanation.stopped is not None
    assert explanation.stopped.rule == "missing_ranges"
    assert "10 that touch it" in explanation.verdict


async def test_a_range_that_is_stuck_stops_the_whole(answerer: QueryAnswerer) -> None:
    await deployed_and_active(answerer.control, answerer.org, RANGES)
    await answerer.trigger("ranges", 0, 499)
    await answerer.control.pool.execute(
        "UPDATE tasks SET status = 'Failed', error_message = 'cheese', fault = 'job', outputs = NULL,"
        " completion_hash = NULL, completion_answer = NULL WHERE id = (SELECT min(t.id::text)::uuid"
        " FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = 'join')"
    )
    explanation = await answerer.why("joined", "0-999")
    assert explanation.stopped is not None
    assert explanation.stopped.rule == "failed_for_good"
    assert "cheese" in explanation.verdict


async def test_an_event_is_followed_from_acceptance_to_its_readers(answerer: QueryAnswerer) -> None:
    await answerer.deploy()
    assert await answerer.rule("asked", "0-9") == "source_has_not_made_it"
    await answerer.trigger("shop", 0, 9, run=False)
    assert await answerer.rule("asked", "0-9") == "not_routed_yet"
    await answerer.control.pool.execute("UPDATE outbox SET status = 'Failed', last_error = 'x', processed_at = now()")
    explanation = await answerer.why("asked", "0-9")
    assert explanation.stopped is not None
    assert explanation.stopped.rule == "outbox_entry_failed"
    assert "trace outbox retry" in str(explanation.stopped.hint)
    await answerer.control.pool.execute("UPDATE outbox SET status = 'Pending', processed_at = NULL")
    await run_here(answerer.control)
    assert await answerer.rule("asked", "0-9") is None
    assert await answerer.rule("done", "0-9") == "waits_for_worker"


async def test_an_event_without_readers_and_an_event_of_an_old_generation_are_explained(
    answerer: QueryAnswerer,
) -> None:
    await answerer.deploy()
    await answerer.trigger("shop", 0, 9)
    (task,) = await answerer.tasks()
    task_claimed, claims = await claimed(answerer.control, task)
    pool = answerer.control.pool
    output = task_claimed.task.outputs[0]
    event = {"dataset_uuid": output.dataset_uuid, "dataset_version": output.dataset_version, "start": 0, "end": 9}
    await answerer.control.completer()(completion(task_claimed, events=[event_body(event)]), claims)
    await run_here(answerer.control)
    explanation = await answerer.why("done", "0-9")
    assert explanation.stopped is not None
    assert explanation.stopped.rule == "no_dependents"
    assert [step.kind for step in explanation.steps] == ["event", "rule", "task", "attempt", "event"]
    await pool.execute(
        "UPDATE events SET disposition = 'AuditOnly', audit_reason = 'not the current generation', routed_at = NULL"
        " WHERE producer_task_id IS NOT NULL"
    )
    assert await answerer.rule("done", "0-9") == "audit_only"


async def test_each_way_a_task_can_wait_or_end_is_the_rule_that_stopped_its_partition(answerer: QueryAnswerer) -> None:
    await answerer.deploy(scaling=", scaling: {max_concurrency: 1}")
    for start in (0, 10, 20):
        await answerer.trigger("shop", start, start + 9)
    first, second, third = await answerer.tasks()
    assert await answerer.rule("done", "0-9") == "waits_for_worker"
    assert await answerer.rule("done", "10-19") == "waits_for_slot"
    task_claimed, claims = await claimed(answerer.control, first)
    assert await answerer.rule("done", "0-9") == "running"
    await answerer.control.completer()(completion(task_claimed, status="Failed", error_message="x"), claims)
    assert await answerer.rule("done", "0-9") == "waits_for_retry"
    await run_here(answerer.control)
    task_claimed, claims = await claimed(answerer.control, second)
    await answerer.control.completer()(
        completion(task_claimed, status="Failed", error_message="x", retryable=False), claims
    )
    assert await answerer.rule("done", "10-19") == "failed_for_good"
    await cancel_task(answerer.control, answerer.org.id, third, "not today")
    assert await answerer.rule("done", "20-29") == "canceled"
    assert "not today" in (await answerer.why("done", "20-29")).verdict


async def test_a_wake_up_that_was_given_up_stops_its_partition(answerer: QueryAnswerer) -> None:
    await answerer.deploy()
    await answerer.trigger("shop", 0, 9)
    await answerer.control.pool.execute(
        "UPDATE outbox SET status = 'Failed', last_error = 'queue gone', processed_at = now()"
        " WHERE kind = 'enqueue_task'"
    )
    explanation = await answerer.why("done", "0-9")
    assert explanation.stopped is not None
    assert explanation.stopped.rule == "outbox_entry_failed"
    assert "queue gone" in explanation.verdict


async def test_a_filter_stops_nothing_and_is_named(answerer: QueryAnswerer) -> None:
    await answerer.deploy(filter_=", where: 'x > 3'")
    await answerer.trigger("shop", 0, 9)
    triggered = await answerer.why("asked", "0-9")
    assert triggered.stopped is None
    assert "narrowed by its filter" in triggered.steps[1].sentence
    assert "narrowed by its filter" in (await answerer.why("done", "0-9")).steps[1].sentence


async def test_an_event_of_another_organisation_explains_nothing(answerer: QueryAnswerer) -> None:
    await answerer.deploy()
    await answerer.trigger("shop", 0, 9)
    rival = QueryAnswerer(answerer.control, await an_org(answerer.control.pool, "rival"))
    await rival.deploy()
    assert await rival.rule("asked", "0-9") == "source_has_not_made_it"


def event_body(fields: dict[str, object]) -> object:
    from tracelake.wire.task.outputs import EventBody

    return EventBody(**fields)  # type: ignore[arg-type]
