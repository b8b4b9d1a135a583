"""Which partitions a task makes, and from which rows: inputs with different partitions, invalidations, labels."""

from __future__ import annotations

from uuid import uuid4

import pytest

from tests.support.systems.operators import Numbers, OperatorSystem
from tests.support.systems.walk import working
from tests.support.verbs import invalidate

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("numbers")]

BOTH = "SELECT 'wide' AS side, block_number FROM wide UNION ALL SELECT 'narrow' AS side, block_number FROM narrow"


def dag(job: str, *, attempts: int = 1, inputs: str = "[{from: {job: wide}}, {from: {job: narrow}}]") -> str:
    """Two datasets, made on request, and a job that reads both."""
    return f"""
name: d
defaults:
  runtime: ecs_platform
  max_attempts: {attempts}
  max_platform_failures: {attempts}
  retry: {{backoff: 1s}}
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


async def keys(system: OperatorSystem, name: str = "made") -> list[str]:
    return [partition["partition_key"] for partition in await system.partitions(name)]


async def all_done(system: OperatorSystem) -> None:
    """Including retries."""
    await system.settled()
    await system.until("SELECT NOT EXISTS (SELECT FROM tasks WHERE status = 'Failed' AND next_retry_at IS NOT NULL)")
    await system.settled()


@pytest.mark.parametrize("first", ["wide", "narrow"])
async def test_inputs_with_different_partitions_all_reach_the_output_in_any_order(
    system: OperatorSystem, first: str
) -> None:
    await system.deploy(dag(sql(BOTH), attempts=9))
    async with working(system.worker()):
        await system.trigger("d", "ask_wide", start=5000, end=5499)
        await system.trigger("d", "ask_narrow", start=5000, end=5099)
        await all_done(system)  # both have a schema now
        before = {row["id"] for row in await system.fetch("SELECT id FROM tasks")}
        updates = [("ask_narrow", start, start + 99) for start in range(0, 500, 100)]
        updates.insert(0 if first == "wide" else 2, ("ask_wide", 0, 499))
        for job, start, end in updates:
            await system.trigger("d", job, start=start, end=end)
            await system.settled()
    found = await system.fetch("SELECT id, status::text, attempt, error_message FROM tasks")
    assert {(row["status"], row["attempt"]) for row in found if row["id"] not in before} == {("Completed", 1)}, found
    rows = [(row["side"], row["block_number"]) for row in await system.rows("made") if row["block_number"] < 500]
    assert rows == [(side, number) for side in ("narrow", "wide") for number in range(500)]
    made = {"wide": ["0-499"], "narrow": ["0-99", "100-199", "200-499"]}
    assert [key for key in await keys(system) if not key.startswith("5")] == made[first]


async def test_a_range_that_cuts_a_partition_is_refused_once_and_then_rewrites_the_partition(
    system: OperatorSystem, numbers: Numbers
) -> None:
    await system.deploy(dag(sql("SELECT block_number, value FROM wide"), attempts=3, inputs="[{from: {job: wide}}]"))
    async with working(system.worker()):
        await system.trigger("d", "ask_wide", start=0, end=99)
        await all_done(system)
        numbers.value = lambda number: -number
        await system.trigger("d", "ask_wide", start=90, end=109)
        await all_done(system)
    tried = await system.fetch(
        "SELECT t.attempt FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = 'wide' ORDER BY t.attempt"
    )
    assert [row["attempt"] for row in tried] == [1, 2]
    for name in ("wide", "made"):
        assert await keys(system, name) == ["0-99", "100-109"]
        assert [(row["block_number"], row["value"]) for row in await system.rows(name)] == [(n, -n) for n in range(110)]


FUNCTIONS = "tests.support.spark.functions"
READERS = {
    "sql": sql(BOTH),
    "python": f'operator: python, config: {{function: "{FUNCTIONS}:both"}}',
    "quality": "operator: quality, config: {checks: [{kind: compare_rows, input: wide, other: narrow, level: warn}]}",
}


@pytest.mark.parametrize("reader", READERS)
async def test_a_followed_unpartitioned_input_is_refused_beside_ranges_and_never_read_as_empty(
    system: OperatorSystem, reader: str
) -> None:
    await system.deploy(dag(READERS[reader]))
    await system.run("d", "ask_wide", start=0, end=9)
    await system.run("d", "ask_narrow")
    assert await keys(system, "narrow") == ["all"]
    message = await system.error("made")
    assert "wide is made of ranges, such as 0-9" in message, message
    await system.run("d", "ask_wide", start=10, end=19)
    failed = await system.fetch("SELECT error_message AS message FROM tasks WHERE status = 'Failed'")
    (refused,) = [row["message"] for row in failed if "narrow is made whole" in row["message"]]
    assert "trigger: false" in refused
    assert "mode: full" in refused
    assert await keys(system) == []


@pytest.mark.parametrize("reader", ["sql", "python"])
async def test_a_labelled_partition_is_made_from_the_partitions_with_that_label(
    system: OperatorSystem, reader: str
) -> None:
    await system.deploy(dag(READERS[reader], attempts=9))
    async with working(system.worker()):
        for job, name in (("wide", "a"), ("narrow", "a"), ("wide", "b")):
            await system.trigger("d", f"ask_{job}", partition=name)
            await all_done(system)
    # `narrow` has no `b` yet, which is not an error.
    assert {partition["partition_key"]: partition["row_count"] for partition in await system.partitions("made")} == {
        "a": 20,
        "b": 10,
    }


async def test_an_update_makes_its_range_and_an_update_without_range_makes_the_whole_dataset(
    system: OperatorSystem,
) -> None:
    query = "SELECT count(*) AS n FROM wide"
    reading = "[{from: {job: ask_narrow}}, {from: {job: wide}, trigger: false}]"
    await system.deploy(dag(sql(query, ", mode: update"), inputs="[{from: {job: wide}}]"))
    await system.run("d", "ask_wide", start=0, end=4)
    await system.run("d", "ask_wide", start=5, end=6)
    assert {partition["partition_key"]: partition["row_count"] for partition in await system.partitions("made")} == {
        "0-4": 1,
        "5-6": 1,
    }
    assert await system.rows("made") == [{"n": 2}, {"n": 5}]

    await system.deploy(dag(sql(query, ", mode: update"), inputs=reading))
    await system.run("d", "ask_narrow")
    await system.run("d", "ask_narrow", cursor=7)
    assert await keys(system) == ["all"]
    assert await system.rows("made") == [{"n": 7}]

    await system.deploy(dag(sql(query), inputs=reading))
    await system.run("d", "ask_narrow", cursor=8)
    failed = "SELECT t.error_message FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = 'made'"
    errors = [row["error_message"] for row in await system.fetch(f"{failed} AND t.status = 'Failed'")]
    # The changed job catches up with the triggers before as well.
    assert any("a partition is needed, and this is cursor 8" in error for error in errors), errors


async def test_an_update_without_range_is_refused_where_ranges_are_followed(system: OperatorSystem) -> None:
    """The whole dataset beside its ranges would repeat every row."""
    both = "[{from: {job: ask_narrow}}, {from: {job: wide}}]"
    await system.deploy(dag(sql("SELECT block_number FROM wide", ", mode: update"), inputs=both))
    await system.run("d", "ask_wide", start=0, end=4)
    await system.run("d", "ask_narrow")
    assert "wide is made of ranges, such as 0-4" in await system.error("made")
    assert await keys(system) == ["0-4"]


async def test_rows_outside_of_the_range_are_not_read_from_a_wider_partition(system: OperatorSystem) -> None:
    await system.deploy(dag(sql(BOTH)))
    await system.run("d", "ask_wide", start=0, end=9)
    await system.run("d", "ask_narrow", start=3, end=4)
    assert await keys(system) == ["3-4"]
    assert [(row["side"], row["block_number"]) for row in await system.rows("made")] == [
        ("narrow", 3),
        ("narrow", 4),
        ("wide", 3),
        ("wide", 4),
    ]


async def test_a_range_is_refused_where_rows_of_a_wider_partition_have_no_number(system: OperatorSystem) -> None:
    query = "SELECT number FROM renamed UNION ALL SELECT block_number AS number FROM narrow"
    text = dag(sql(query), inputs="[{from: {job: renamed}}, {from: {job: narrow}}]")
    renamed = sql("SELECT block_number AS number FROM wide")
    more = f"  - {{name: renamed, {renamed}, inputs: [{{from: {{job: wide}}}}]}}\n"
    await system.deploy(text.replace("  - {name: made", f"{more}  - {{name: made"))
    await system.run("d", "ask_wide", start=0, end=9)
    await system.run("d", "ask_narrow", start=0, end=4)
    rows = await system.fetch("SELECT error_message AS message FROM tasks WHERE error_message LIKE '%block_number%'")
    (refusal,) = [row["message"].partition(" (")[0] for row in rows]
    assert refusal.startswith("renamed has no column block_number, so the rows of 0-4 cannot be distinguished")
    assert refusal.endswith("from the others of its partition 0-9")
    assert await keys(system) == []
    await system.run("d", "ask_narrow", start=20, end=24)
    await system.run("d", "ask_wide", start=20, end=24)
    assert [row["number"] for row in await system.rows("made")] == sorted([*range(20, 25)] * 2), "one that fits is read"


@pytest.mark.parametrize("reader", ["python", "quality"])
async def test_an_invalidation_over_several_partitions_rewrites_each_in_one_commit(
    system: OperatorSystem, reader: str
) -> None:
    job = {
        "python": f'operator: python, config: {{function: "{FUNCTIONS}:copied"}}',
        "quality": "operator: quality, config: {checks: [{kind: row_count, min: 5, max: 5}, {kind: continuous}]}",
    }
    await system.deploy(dag(job[reader], inputs="[{from: {job: wide}}]"))
    for start in (0, 5, 10):
        await system.run("d", "ask_wide", start=start, end=start + 4)
    before = await system.rows("made")
    control, org = system.walk.control, system.walk.org
    async with working(system.worker()):
        wide = await system.dataset("wide")
        await invalidate(control, org.id, org.user, wide, start=3, end=6, reason="a test", request_id=uuid4())
        await system.settled()
    found = {partition["partition_key"]: partition["valid_from"] for partition in await system.partitions("made")}
    assert found == {"0-4": 4, "5-9": 4, "10-14": 3}
    assert await system.rows("made") == before


async def test_each_range_is_compared_by_the_task_that_has_both_sides_and_others_report_waiting(
    system: OperatorSystem,
) -> None:
    check = "{kind: compare_rows, input: wide, other: narrow}"
    await system.deploy(dag(f"operator: quality, config: {{checks: [{check}]}}"))
    seen = []
    for job, start, end in (
        *(("wide", 0, 9), ("narrow", 0, 4), ("narrow", 5, 9)),
        *(("narrow", 20, 24), ("wide", 20, 29), ("narrow", 25, 29)),
    ):
        states = await system.run("d", f"ask_{job}", start=start, end=end)
        assert set(states["made"]) == {"Completed"}, await system.error("made")
        seen.append(await keys(system))
    assert seen[:3] == [[], ["0-4"], ["0-4", "5-9"]]
    assert [item[2:] for item in seen[3:]] == [[], ["20-24"], ["20-24", "25-29"]]
    rows = await system.fetch("SELECT progress->>'message' AS message FROM tasks WHERE progress IS NOT NULL")
    assert sorted(row["message"] for row in rows) == [
        "0-9 is left to a later task: narrow is not there yet",
        "20-24 is left to a later task: wide is not there yet",
        "25-29 is left to a later task: narrow is not there yet",
    ]
