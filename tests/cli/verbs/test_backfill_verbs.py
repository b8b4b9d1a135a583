"""`trace gaps`, `backfill`, and the progress of what is built: counted, in order, within a budget."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pytest

from tests.support.dispatcher.control import PULL
from tests.support.dispatcher.releases import build
from tests.support.dispatcher.run_tasks import settle
from tests.support.operators import registered
from tests.support.systems.command_line import Running, Trace
from tests.support.verbs import trigger
from tests.support.waiting import until
from tracelake.cli import printing
from tracelake.dispatcher.versions.run_backfills import RunBackfills
from tracelake.settings import LoopSettings

pytestmark = pytest.mark.usefixtures("known_operators")

DAG = """
name: mill
jobs:
  - {name: ask, operator: noop, runtime: dispatcher, source: {kind: manual}}
  - {name: grind, operator: noop, runtime: ecs_platform, inputs: [{from: {job: ask}}]}
"""


@pytest.fixture(autouse=True)
def pulling() -> Iterator[None]:
    with registered(pull=PULL):
        yield


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        ("requests=0", "a budget of 0 requests allows nothing"),
        ("bytes=-5", "a budget of -5 bytes allows nothing"),
        ("tasks=1.5", "'1.5' is not a number of tasks"),
        ("hours=nan", "a budget of nan hours allows nothing"),
        ("rows=5", "'rows=5' is no budget"),
    ],
)
def test_a_budget_that_allows_nothing_or_is_none_is_refused(trace: Trace, budget: str, said: str) -> None:
    refused = trace("backfill", "mill", "--gaps", "--budget", budget)
    assert refused.code != 0
    assert said in refused.err


async def run_out_of_time(running: Running) -> None:
    control = running.control
    await control.pool.execute("UPDATE backfills SET budget_until = now()")
    await RunBackfills(control.pool, control.after_commit, LoopSettings()).once()


def test_a_stopped_backfill_says_why_and_is_resumed_with_a_larger_budget(
    trace: Trace, running: Running, file: Path
) -> None:
    file.write_text(DAG)
    assert trace("dag", "deploy", str(file), "--activate").code == 0
    started = trace("backfill", "mill", "--range", "0-9", "--budget", "requests=5,bytes=1000,hours=1")
    assert "requests      0 of 5" in started.out
    backfill = trace("backfill", "list", "--json").json["backfills"][0]["id"]
    running.do(run_out_of_time(running))
    shown = trace("backfill", "show", backfill)
    assert "the hours of its budget are over; `trace backfill resume ID --budget ...` raises it" in shown.out
    refused = trace("backfill", "resume", backfill)
    assert (refused.code != 0, "--budget hours=H" in refused.err) == (True, True)
    resumed = trace("backfill", "resume", backfill, "--budget", "hours=1,requests=9", "--json").json
    assert (resumed["status"], resumed["stopped_because"], resumed["budget_requests"]) == ("Running", None, 9)


WITHOUT_BAKE = DAG.replace("operator: noop, runtime: ecs", "operator: pull, runtime: ecs")
WITH_BAKE = WITHOUT_BAKE + "  - {name: bake, operator: pull, runtime: ecs_platform, inputs: [{from: {job: grind}}]}\n"
ORDER = """
SELECT array_agg(t.partitions[1] ORDER BY t.id) FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = 'bake'
"""


@pytest.fixture
def behind(running: Running, trace: Trace, file: Path) -> None:
    """Job `bake` has processed nothing of three ranges."""
    file.write_text(WITHOUT_BAKE)
    assert trace("dag", "deploy", str(file), "--activate").code == 0
    org = running.do(running.control.pool.fetchval("SELECT id FROM orgs LIMIT 1"))
    for start in (0, 10, 20):
        asked = {"start": start, "end": start + 9, "request_id": uuid4()}
        running.do(trigger(running.control, org, "mill", "ask", **asked))
    running.do(settle(running.control))
    file.write_text(WITH_BAKE)
    assert trace("dag", "deploy", str(file), "--now").code == 0


async def backfilled(running: Running) -> list[str]:
    """Runs what a backfill creates, when there is one; the partitions, in the order of their tasks."""
    pool, after = running.control.pool, running.control.after_commit
    await pool.execute("DELETE FROM catch_ups")  # nothing catches up by itself meanwhile
    await until(lambda: pool.fetchval("SELECT EXISTS (SELECT FROM backfills)"), "there is a backfill")
    while await RunBackfills(pool, after, LoopSettings()).once():
        pass
    await settle(running.control)
    await pool.execute("UPDATE backfills SET due_at = now()")
    while await RunBackfills(pool, after, LoopSettings()).once():
        pass
    return list(await pool.fetchval(ORDER))


@pytest.mark.usefixtures("behind")
def test_gaps_are_listed_counted_and_filled_from_the_newest_with_a_progress_bar(
    trace: Trace, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = trace("gaps", "mill.bake", "--json").json
    assert [(item["planned"], item["pending"]) for item in found["inputs"]] == [(3, 3)]
    assert [(gap["scope"], gap["state"]) for gap in found["inputs"][0]["gaps"]] == [("0-29", "missing")]
    dry = trace("backfill", "mill", "--gaps", "--order", "newest", "--dry-run")
    assert (dry.code, "3 to process, 3 there already; nothing was started" in dry.out) == (0, True), dry
    assert trace("backfill", "list", "--json").json["backfills"] == []
    monkeypatch.setattr(printing.err, "_force_terminal", True)
    with ThreadPoolExecutor(1) as pool:
        running_them = pool.submit(running.do, backfilled(running))
        done = trace("backfill", "mill", "--gaps", "--order", "newest", "--wait")
        assert running_them.result() == ["20-29", "10-19", "0-9"]
    assert (done.code, "3/3" in done.err, "complete" in done.out) == (0, True, True), done
    assert "mill.bake is complete" in trace("gaps", "mill.bake").out
    again = trace("backfill", "mill", "bake", "--range", "0-29")
    assert "nothing to do: 3 there already; `--again` processes them again" in again.out


def test_the_short_form_builds_promotes_and_shows_how_far_it_is(
    trace: Trace, running: Running, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`trace dag deploy --activate`, of a change that rebuilds a dataset."""
    file.write_text(WITHOUT_BAKE)
    assert trace("dag", "deploy", str(file), "--activate").code == 0
    org = running.do(running.control.pool.fetchval("SELECT id FROM orgs LIMIT 1"))
    running.do(trigger(running.control, org, "mill", "ask", start=0, end=9, request_id=uuid4()))
    running.do(settle(running.control))
    before = trace("dag", "show", "mill", "--json").json["active_version"]
    file.write_text(
        WITHOUT_BAKE.replace("{name: grind, operator: pull", "{name: grind, operator: pull, config: {n: 2}")
    )

    async def built() -> None:
        states = "SELECT EXISTS (SELECT FROM releases WHERE state = 'Building' AND when_ready)"
        await until(lambda: running.control.pool.fetchval(states), "a release is being built")
        await build(running.control)

    monkeypatch.setattr(printing.err, "_force_terminal", True)
    with ThreadPoolExecutor(1) as pool:
        building = pool.submit(running.do, built())
        done = trace("dag", "deploy", str(file), "--activate")
        building.result()
    assert (done.code, "building mill" in done.err) == (0, True), done
    assert trace("dag", "show", "mill", "--json").json["active_version"] != before
    assert [release["state"] for release in trace("release", "list", "--json").json["releases"]] == ["Serving"]
