"""`trace job` and what `trace status` says of pressure: jobs that are paused, tasks in flight, jobs that run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.dispatcher.job_chain import drained
from tests.support.systems.command_line import Running, Trace
from tracelake.dispatcher.flow.apply_pressure import ApplyPressure
from tracelake.lite.child import ChildStatus
from tracelake.lite.home import Home, held
from tracelake.settings import FlowSettings

pytestmark = pytest.mark.usefixtures("known_operators")

DAG = """\
name: desk
defaults: {runtime: ecs_platform}
jobs:
  - {name: ask, operator: noop, runtime: dispatcher, source: {kind: manual}}
  - {name: load, operator: work, inputs: [{from: {job: ask}}]}
  - {name: slow, operator: work, inputs: [{from: {job: ask}}], max_queue_depth: 1, scaling: {max_concurrency: 1}}
"""
BECAUSE = "paused because 2 tasks of desk.slow were queued (limit 1)"


@pytest.fixture
def deployed(running: Running, trace: Trace, file: Path) -> Running:
    file.write_text(DAG)
    assert trace("dag", "deploy", str(file), "--activate").code == 0
    return running


def triggered(running: Running, trace: Trace, blocks: str) -> None:
    assert trace("trigger", "desk", "ask", "--range", blocks).code == 0
    running.do(drained(running.control))


def test_a_job_of_any_kind_is_paused_and_resumed_and_what_waits_for_it_is_listed(
    deployed: Running, trace: Trace
) -> None:
    assert trace("job", "pauses").out == "no job is paused\n"
    for verb, first, second in (
        ("pause", "is paused; `trace job resume` resumes it", "was paused already; nothing changed"),
        ("resume", "is resumed", "was not paused; nothing changed"),
    ):
        assert trace("job", verb, "desk", "load").out == f"desk.load {first}\n"
        if verb == "pause":
            triggered(deployed, trace, "0-9")
            (row,) = trace("job", "pauses", "--json").json["pauses"]
            assert (row["job"], row["because"], row["held"]) == ("load", "paused by hand", 1)
            assert "paused by hand" in trace("job", "pauses").out
        assert trace("job", verb, "desk", "load").out == f"desk.load {second}\n"
    assert trace("job", "pauses", "--json").json["pauses"] == []
    refused = trace("job", "pause", "desk", "laod")
    assert (refused.code, refused.out) == (1, "")
    assert "laod" in refused.err


def test_status_shows_what_is_paused_and_why_what_is_in_flight_and_how_many_jobs_run(
    deployed: Running, trace: Trace, home: Home
) -> None:
    ready = [vars(ChildStatus(name, "ready")) for name in ("gateway", "dispatcher")]
    home.status.write_text(json.dumps({"processes": ready}))
    control = deployed.control
    with held(home):
        before = trace("status", "--json").json
        assert (before["jobs_running"], before["jobs_idle"], before["paused_jobs"]) == (0, 2, 0)
        assert "Reactive jobs: 0 running, 2 idle" in trace("status").out
        for blocks in ("0-9", "10-19"):
            triggered(deployed, trace, blocks)
        deployed.do(ApplyPressure(control.pool, control.after_commit, FlowSettings()).once())
        shown = trace("status").out
        assert "1 job is paused, and 0 events wait." in shown
        assert f"desk.ask is {BECAUSE}" in shown
        assert "Reactive jobs: 2 running, 0 idle" in shown
        assert "waiting for a slot" in shown
        after = trace("status", "--json").json
    (work,) = after["in_flight"]
    assert (work["operator"], work["running"], work["woken"], work["waiting"]) == ("work", 0, 3, 1)
    assert (after["jobs_running"], after["jobs_idle"], after["paused_jobs"]) == (2, 0, 1)
