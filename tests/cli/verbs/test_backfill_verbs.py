"""The budget of a backfill on the command line: what is no budget is refused, and a stopped one is raised."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.systems.command_line import Running, Trace
from tracelake.dispatcher.versions.run_backfills import RunBackfills
from tracelake.settings import LoopSettings

pytestmark = pytest.mark.usefixtures("known_operators")

DAG = """
name: mill
jobs:
  - {name: ask, operator: noop, runtime: dispatcher, source: {kind: manual}}
  - {name: grind, operator: noop, runtime: ecs_platform, inputs: [{from: {job: ask}}]}
"""


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
