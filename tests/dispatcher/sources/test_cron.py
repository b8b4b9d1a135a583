"""Cron sources: every slot fires once, as a task or an event, or is recorded with the reason why it did not."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any
from uuid import uuid4

import pytest

from tests.support.dispatcher.control import PULL, WORKS, Org, deployed_and_active
from tests.support.verbs import fire_schedules, pause_job, resume_job
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.sources.show import list_sources, show_source
from tracelake.dispatcher.why.explain import explain
from tracelake.domain.sources.decide_slots import delay_of
from tracelake.errors import Conflict, InvalidDag
from tracelake.wire.user.sources import FireRequest
from tracelake.wire.user.why import WhyQuery

pytestmark = pytest.mark.anyio

OPERATORS = {"pull": PULL, "works": WORKS}

DAG = """
name: desk
defaults: {runtime: ecs_platform}
jobs:
  - {name: load, operator: works, source: {kind: cron, schedule: "* * * * *", overlap: allow%s}}
  - {name: tick, operator: pull, source: {kind: cron, schedule: "* * * * *"%s}, outputs: [left, right]}
  - {name: work, operator: pull, inputs: [{from: {job: tick, output: left}}]}
"""
PLAIN = DAG % ("", "")


async def minutes_pass(control: Control, minutes: int) -> None:
    """As if schedules had been decided so long ago, on a full minute, and not since."""
    await control.pool.execute(
        "UPDATE source_schedules SET decided_until = date_trunc('minute', now()) - make_interval(mins => $1),"
        " due_at = now()",
        minutes,
    )


async def slots(control: Control, job: str = "load") -> list[Any]:
    rows = await control.pool.fetch(
        "SELECT slot, reason::text, task_id FROM source_slots WHERE job_name = $1 ORDER BY slot", job
    )
    return [(row["slot"], row["reason"], row["task_id"] is not None) for row in rows]


async def reasons(control: Control, job: str = "load") -> list[str | None]:
    return [reason for _, reason, _ in await slots(control, job)]


async def test_a_schedule_begins_with_its_deploy_and_says_when_it_is_next_due(control: Control, org: Org) -> None:
    await deployed_and_active(control, org, PLAIN)
    answer = await fire_schedules(control)
    assert (answer.fired, answer.decided) == (0, 0)
    assert answer.next_in_seconds is not None
    assert 0 <= answer.next_in_seconds <= 60
    assert await slots(control) == []


async def test_a_slot_makes_a_task_with_its_time_or_an_event_for_each_output(control: Control, org: Org) -> None:
    await deployed_and_active(control, org, PLAIN)
    await minutes_pass(control, 1)
    assert (await fire_schedules(control)).fired == 2
    ((slot, reason, has_task),) = await slots(control)
    assert (reason, has_task) == (None, True)
    (task,) = await control.pool.fetch("SELECT dedupe_key, input_versions, woken_at FROM tasks")
    assert task["dedupe_key"] == f"slot:{slot:%Y-%m-%dT%H:%M:%SZ}"
    assert task["input_versions"]["fired"]["kind"] == "cron"
    assert datetime.fromisoformat(task["input_versions"]["fired"]["slot"]) == slot
    assert task["woken_at"] is not None
    events = await control.pool.fetch("SELECT origin::text, cursor_value FROM events")
    assert [tuple(event) for event in events] == [("cron", int(slot.timestamp()))] * 2
    turns = "SELECT array_agg(turn_of ORDER BY turn_of) FROM outbox WHERE kind = 'route_event'"
    assert await control.pool.fetchval(turns) == await control.pool.fetchval(
        "SELECT array_agg(dataset_uuid ORDER BY dataset_uuid) FROM events"
    )
    await control.drain().once()
    assert await control.pool.fetchval("SELECT count(*) FROM tasks") == 2


async def test_a_slot_fires_once_however_many_decide_it(control: Control, org: Org) -> None:
    await deployed_and_active(control, org, PLAIN)
    await minutes_pass(control, 5)
    await asyncio.gather(*(fire_schedules(control) for _ in range(5)))
    await minutes_pass(control, 5)  # as if the end of the former decision were lost
    await asyncio.gather(*(fire_schedules(control) for _ in range(5)))
    assert await control.pool.fetchval("SELECT count(*) FROM tasks") == len(await slots(control)) >= 5
    assert len({slot for slot, _, _ in await slots(control)}) == len(await slots(control))


async def test_a_deploy_keeps_an_unchanged_schedule_and_begins_a_changed_one_anew(control: Control, org: Org) -> None:
    await deployed_and_active(control, org, PLAIN)
    await minutes_pass(control, 3)
    await deployed_and_active(control, org, DAG % (", jitter: 0s", ', tz: "Europe/Berlin"'))
    await fire_schedules(control)
    assert len(await slots(control, "load")) >= 3
    assert await slots(control, "tick") == []
    assert await control.pool.fetchval("SELECT count(*) FROM source_schedules") == 2
    await deployed_and_active(
        control, org, "name: desk\njobs: [{name: a, operator: noop, runtime: dispatcher, source: {kind: manual}}]"
    )
    assert await control.pool.fetchval("SELECT count(*) FROM source_schedules") == 0


async def test_a_task_of_a_slot_is_made_again_for_the_next_version(control: Control, org: Org) -> None:
    await deployed_and_active(control, org, PLAIN)
    await minutes_pass(control, 1)
    await fire_schedules(control)
    await deployed_and_active(control, org, DAG % ("", ", jitter: 1s"))
    rows = await control.pool.fetch("SELECT status::text, dedupe_key FROM tasks ORDER BY id")
    assert [row["status"] for row in rows] == ["Canceled", "Queued"]
    # The canceled task gave its key up to the one that does its work.
    assert len({row["dedupe_key"].partition(":canceled:")[0] for row in rows}) == 1


async def test_a_new_schedule_whose_last_time_is_over_is_refused_and_one_that_is_active_stays(
    control: Control, org: Org
) -> None:
    year = await control.pool.fetchval("SELECT extract(year FROM now())::int")
    to_come, over = (f"cron(0 12 * * ? {year + years})" for years in (1, -1))
    text = PLAIN.replace("* * * * *", to_come, 1)
    await deployed_and_active(control, org, text)
    with pytest.raises(InvalidDag, match="its last time was before") as refused:
        await deployed_and_active(control, org, text.replace(to_come, over))
    (problem,) = refused.value.problems
    assert (problem.code, problem.field) == ("bad_schedule", "jobs[0].source.schedule")
    assert await control.pool.fetchval("SELECT count(*) FROM dag_versions") == 1, "nothing of it is stored"
    await control.pool.execute("UPDATE jobs SET source = source || $1 WHERE name = 'load'", {"schedule": over})
    changed = text.replace(to_come, over).replace("name: work,", "name: work, max_attempts: 7,")
    await deployed_and_active(control, org, changed)
    await deployed_and_active(control, org, changed)
    assert (await show_source(control.pool, org.id, "desk", "load", {})).next_fires == []


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (", catch_up: none", ["missed", "missed", None]),
        (", catch_up: 2m", ["beyond_catch_up", None, None]),
        ("", [None, None, None]),
    ],
)
async def test_late_slots_fire_as_far_as_they_are_caught_up(
    control: Control, org: Org, rules: str, expected: list[str | None]
) -> None:
    await deployed_and_active(control, org, DAG % (rules, rules))
    await minutes_pass(control, 3)
    await fire_schedules(control)
    assert (await reasons(control))[-3:] == expected


@pytest.mark.parametrize(
    ("overlap", "expected"),
    [
        ("skip", [None, "overlap", "overlap"]),
        ("buffer_one", [None, None, "overlap"]),
        ("buffer_all", [None, None, None]),
        ("allow", [None, None, None]),
    ],
)
async def test_slots_that_overlap_wait_or_do_not_fire(
    control: Control, org: Org, overlap: str, expected: list[str | None]
) -> None:
    await deployed_and_active(control, org, PLAIN.replace("overlap: allow", f"overlap: {overlap}"))
    await minutes_pass(control, 3)
    await fire_schedules(control)
    assert (await reasons(control))[:3] == expected
    await control.drain().once()
    woken = await control.pool.fetchval(
        "SELECT count(*) FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = 'load' AND woken_at IS NOT NULL"
    )
    assert woken == (len(await slots(control)) if overlap == "allow" else 1)


async def test_a_source_with_jitter_fires_its_slots_later_and_they_keep_their_times(control: Control, org: Org) -> None:
    await deployed_and_active(control, org, DAG % (", jitter: 1h", ""))
    delay, minute = delay_of("desk.load", 3600), timedelta(minutes=1)
    assert delay > 2 * minute, "or this shows nothing"
    await minutes_pass(control, delay // minute + 3)
    await fire_schedules(control)
    now = await control.pool.fetchval("SELECT now()")
    fired = [slot for slot, reason, _ in await slots(control) if reason is None]
    assert fired
    assert all(slot.second == 0 and slot + delay <= now for slot in fired)
    due = await control.pool.fetchval(
        "SELECT due_at FROM source_schedules s JOIN jobs j ON j.id = s.job_id WHERE j.name = 'load'"
    )
    assert due == fired[-1] + minute + delay
    ticks = [slot for slot, _, _ in await slots(control, "tick")]
    assert ticks[-1] > fired[-1], "one without jitter is not late"


async def test_slots_of_a_paused_source_are_recorded_as_paused(control: Control, org: Org) -> None:
    await deployed_and_active(control, org, PLAIN)
    await pause_job(control, org.as_user, "desk", "load")
    await minutes_pass(control, 2)
    await fire_schedules(control)
    assert set(await reasons(control)) == {"paused"}
    assert set(await reasons(control, "tick")) == {None}
    await resume_job(control, org.as_user, "desk", "load")
    before = len(await slots(control))
    await control.pool.execute("DELETE FROM source_slots")
    await minutes_pass(control, 1)
    await fire_schedules(control)
    assert before >= 2
    assert set(await reasons(control)) == {None}


async def test_the_clock_of_postgres_decides(control: Control, org: Org, monkeypatch: pytest.MonkeyPatch) -> None:
    await deployed_and_active(control, org, PLAIN)
    monkeypatch.setattr("time.time", lambda: 0.0)
    await minutes_pass(control, 1)
    await fire_schedules(control)
    slot, _, _ = (await slots(control))[-1]
    assert abs(slot - await control.pool.fetchval("SELECT now()")) < timedelta(minutes=2)


async def test_a_failed_task_pauses_a_source_that_says_so_until_it_is_resumed(control: Control, org: Org) -> None:
    await deployed_and_active(control, org, DAG % (", pause_on_failure: true", ""))
    await minutes_pass(control, 1)
    await fire_schedules(control)
    await control.pool.execute(
        "UPDATE tasks SET status = 'Failed', error_message = 'x', fault = 'job', completed_at = now()"
    )
    await control.pool.execute("UPDATE source_slots SET slot = slot - interval '1 hour'")
    await minutes_pass(control, 1)
    await fire_schedules(control)
    assert (await reasons(control))[-1] == "paused"
    shown = await show_source(control.pool, org.id, "desk", "load", {})
    assert (shown.paused, shown.pause_reason) == (True, "failure")
    await resume_job(control, org.as_user, "desk", "load")
    await control.pool.execute("UPDATE source_slots SET slot = slot - interval '1 hour'")
    await minutes_pass(control, 1)
    await fire_schedules(control)
    assert (await reasons(control))[-1] is None


async def test_a_source_shows_its_next_fires_in_its_zone_and_what_became_of_slots(control: Control, org: Org) -> None:
    await deployed_and_active(control, org, DAG % (', tz: "Asia/Tokyo"', ""))
    await minutes_pass(control, 2)
    await fire_schedules(control)
    shown = await show_source(control.pool, org.id, "desk", "load", {})
    assert [fire.slot - before.slot for before, fire in pairwise(shown.next_fires)] == [timedelta(minutes=1)] * 4
    assert all(fire.local.endswith("JST") for fire in shown.next_fires)
    assert [slot.task_status for slot in shown.slots[-2:]] == ["Queued"] * 2
    listed = await list_sources(control.pool, org.id, None, {})
    assert [(row.job, row.kind, row.ready) for row in listed.sources] == [
        ("load", "cron", True),
        ("tick", "cron", True),
    ]


async def test_a_user_fires_a_source_out_of_turn_once_per_request(control: Control, org: Org) -> None:
    await deployed_and_active(control, org, PLAIN)
    request, fire = FireRequest(body={"why": "now"}, request_id=uuid4()), control.fire_source().fire
    first = await fire(org.id, "desk", "load", request)
    again = await fire(org.id, "desk", "load", request)
    assert (first.created, again.created, again.task_id) == (True, False, first.task_id)
    (task,) = await control.pool.fetch("SELECT input_versions FROM tasks")
    assert task["input_versions"]["fired"] == {"kind": "manual", "body": {"why": "now"}}
    events = [await fire(org.id, "desk", "tick", FireRequest(request_id=request.request_id)) for _ in range(2)]
    assert len(events[0].event_ids) == 2
    assert sorted(events[0].event_ids) == sorted(events[1].event_ids)
    await pause_job(control, org.as_user, "desk", "load")
    with pytest.raises(Conflict, match="paused"):
        await fire(org.id, "desk", "load", FireRequest())


async def test_why_says_which_slot_made_a_task(control: Control, org: Org) -> None:
    await deployed_and_active(control, org, PLAIN)
    await minutes_pass(control, 1)
    await fire_schedules(control)
    slot, _, _ = (await slots(control))[-1]
    task = await control.pool.fetchval("SELECT id FROM tasks ORDER BY id DESC LIMIT 1")
    explained = await explain(control.pool, org.as_user, WhyQuery(task=task))
    assert f"its schedule fired for the slot {slot:%Y-%m-%dT%H:%M:%SZ}" in explained.steps[0].sentence
