"""Which partitions a task makes, and from which rows: inputs that are cut differently, invalidations, names."""

from __future__ import annotations

import pytest

from tests.operators.rig import Numbers, Rig
from tests.walk.walking import working

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("numbers")]

BOTH = "SELECT 'wide' AS side, block_number FROM wide UNION ALL SELECT 'narrow' AS side, block_number FROM narrow"


def dag(job: str, *, attempts: int = 1, inputs: str = "[{from: {job: wide}}, {from: {job: narrow}}]") -> str:
    """Two datasets, each made when it is asked for, and a job that reads both."""
    return f"""
name: d
defaults: {{runtime: ecs_platform, max_attempts: {attempts}, retry: {{backoff: 1s}}}}
jobs:
  - {{name: ask_wide, operator: noop, runtime: dispatcher, source: {{kind: manual}}}}
  - {{name: ask_narrow, operator: noop, runtime: dispatcher, source: {{kind: manual}}}}
  - {{name: wide, operator: numbers, inputs: [{{from: {{job: ask_wide}}}}]}}
  - {{name: narrow, operator: numbers, inputs: [{{from: {{job: ask_narrow}}}}]}}
  - {{name: made, {job}, inputs: {inputs}}}
publish:
  wide: {{job: wide}}
  narrow: {{job: narrow}}
  made: {{job: made}}
"""


def sql(query: str, more: str = "") -> str:
    return f'operator: sql, config: {{query: "{query}"{more}}}'


async def keys(rig: Rig, name: str = "made") -> list[str]:
    return [one["partition_key"] for one in await rig.partitions(name)]


async def states(rig: Rig, job: str = "made") -> list[str]:
    found = await rig.fetch(
        "SELECT t.status::text FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = $1 ORDER BY t.queued_at", job
    )
    return [row["status"] for row in found]


async def all_done(rig: Rig) -> None:
    """Retries and all."""
    await rig.settled()
    await rig.until("SELECT NOT EXISTS (SELECT FROM tasks WHERE status = 'Failed' AND next_retry_at IS NOT NULL)")
    await rig.settled()


@pytest.mark.parametrize("first", ["wide", "narrow"])
async def test_inputs_that_are_cut_differently_all_get_into_the_output_whichever_comes_first(
    rig: Rig, first: str
) -> None:
    await rig.deploy(dag(sql(BOTH), attempts=9))
    async with working(rig.worker()):
        await rig.trigger("d", "ask_wide", start=5000, end=5499)
        await rig.trigger("d", "ask_narrow", start=5000, end=5099)
        await all_done(rig)  # both have a schema now
        before = {row["id"] for row in await rig.fetch("SELECT id FROM tasks")}
        news = [("ask_narrow", start, start + 99) for start in range(0, 500, 100)]
        news.insert(0 if first == "wide" else 2, ("ask_wide", 0, 499))
        for job, start, end in news:
            await rig.trigger("d", job, start=start, end=end)
            await rig.settled()
    found = await rig.fetch("SELECT id, status::text, attempt, error_message FROM tasks")
    assert {(row["status"], row["attempt"]) for row in found if row["id"] not in before} == {("Completed", 1)}, found
    rows = [(row["side"], row["block_number"]) for row in await rig.rows("made") if row["block_number"] < 500]
    assert rows == [(side, number) for side in ("narrow", "wide") for number in range(500)]
    made = {"wide": ["0-499"], "narrow": ["0-99", "100-199", "200-499"]}
    assert [key for key in await keys(rig) if not key.startswith("5")] == made[first]


async def test_a_range_that_cuts_a_partition_is_refused_once_and_then_makes_that_partition_whole(
    rig: Rig, numbers: Numbers
) -> None:
    await rig.deploy(dag(sql("SELECT block_number, value FROM wide"), attempts=3, inputs="[{from: {job: wide}}]"))
    async with working(rig.worker()):
        await rig.trigger("d", "ask_wide", start=0, end=99)
        await all_done(rig)
        numbers.value = lambda number: -number
        await rig.trigger("d", "ask_wide", start=90, end=109)
        await all_done(rig)
    tried = await rig.fetch(
        "SELECT t.attempt FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = 'wide' ORDER BY t.attempt"
    )
    assert [row["attempt"] for row in tried] == [1, 2]
    for name in ("wide", "made"):
        assert await keys(rig, name) == ["0-99", "100-109"]
        assert [(row["block_number"], row["value"]) for row in await rig.rows(name)] == [(n, -n) for n in range(110)]
