"""`sql`: a SELECT over pinned inputs becomes partitions; it is checked at deploy."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.support.systems.operators import Numbers, OperatorSystem, numbers_dag
from tests.support.systems.walk import working
from tests.support.verbs import invalidate
from tracelake.dispatcher.datasets.show import show_dataset
from tracelake.errors import InvalidDag
from tracelake.ports import Outgoing
from tracelake.store.identity import User

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("numbers")]


def dag(query: str, more: str = "", inputs: str = "[{from: {job: numbers}}]") -> str:
    lines = query.replace("\n", "\n        ")
    return f"""{numbers_dag()}  - name: made
    operator: sql
    config:
      query: |
        {lines}
      {more}
    inputs: {inputs}
publish:
  numbers: {{job: numbers}}
  made: {{job: made}}
"""


async def test_the_rows_of_a_range_become_the_partition_of_that_range(system: OperatorSystem) -> None:
    await system.deploy(dag("SELECT block_number, value + 1 AS more FROM numbers WHERE value >= 20"))
    states = await system.run("d", "ask", start=0, end=4)
    assert states["made"] == ["Completed"], await system.error("made")
    assert await system.rows("made") == [{"block_number": number, "more": number * 10 + 1} for number in (2, 3, 4)]
    (partition,) = await system.partitions("made")
    assert partition["partition_key"] == "0-4"
    await system.run("d", "ask", start=5, end=6)
    assert [row["block_number"] for row in await system.rows("made")] == [2, 3, 4, 5, 6]


async def test_an_invalidated_range_replaces_whole_partitions_and_nothing_else(
    system: OperatorSystem, numbers: Numbers
) -> None:
    await system.deploy(dag("SELECT block_number, value AS v FROM numbers"))
    await system.run("d", "ask", start=0, end=4)
    await system.run("d", "ask", start=5, end=9)
    before = await system.rows("made")
    numbers.value = lambda number: -number
    control, org = system.walk.control, system.walk.org
    async with working(system.worker()):
        dataset = await system.dataset("numbers")
        await invalidate(control, org.id, org.user, dataset, start=3, end=5, reason="a test", request_id=uuid4())
        await system.settled()
    # `numbers` was not made again, so its rows are unchanged; `made` was, from the same rows, in whole partitions.
    assert await system.rows("made") == before
    assert [(item["partition_key"], item["valid_from"]) for item in await system.partitions("made")] == [
        ("0-4", 3),
        ("5-9", 3),
    ]


async def test_full_mode_reads_all_of_every_input_and_replaces_the_whole(system: OperatorSystem) -> None:
    await system.deploy(dag("SELECT count(*) AS n, sum(value) AS total FROM numbers", "mode: full"))
    await system.run("d", "ask", start=0, end=4)
    await system.run("d", "ask", start=5, end=9)
    assert await system.rows("made") == [{"n": 10, "total": 450}]
    (partition,) = await system.partitions("made")
    assert partition["partition_key"] == "all"
    assert await system.rows("made", commit=1) == [{"n": 5, "total": 100}], "the former one can still be read"


async def test_of_many_concurrent_updates_only_the_newest_runs_in_full_mode(system: OperatorSystem) -> None:
    """A task without new commits has nothing to do; an update or a rerun has."""
    await system.deploy(dag("SELECT count(*) AS n, sum(value) AS total FROM numbers", "mode: full"))
    await system.run("d", "ask", start=0, end=4)
    waiting = [await another_task(system, "made") for _ in range(3)]
    async with working(system.worker()):
        states = await system.settled()
    assert sorted(states["made"]) == ["Canceled"] * 2 + ["Completed"] * 2
    superseded = await system.fetch("SELECT DISTINCT superseded_by FROM tasks WHERE status = 'Canceled'")
    assert [record["superseded_by"] for record in superseded] == [waiting[-1]]
    assert [item["valid_from"] for item in await system.partitions("made")] == [1], "no commit, and so no event"
    rows = await system.fetch("SELECT progress->>'message' AS message FROM tasks WHERE progress IS NOT NULL")
    assert ["already" in record["message"] for record in rows] == [True]

    await system.run("d", "ask", start=5, end=9)
    assert await system.rows("made") == [{"n": 10, "total": 450}]
    control, org, numbers = system.walk.control, system.walk.org, await system.dataset("numbers")
    async with working(system.worker()):
        await invalidate(control, org.id, org.user, numbers, start=3, end=5, reason="a test", request_id=uuid4())
        await system.settled()
    assert [item["valid_from"] for item in await system.partitions("made")] == [3]
    assert await system.rows("made") == [{"n": 10, "total": 450}]


async def another_task(system: OperatorSystem, job: str) -> UUID:
    """As if an update had created one."""
    control = system.walk.control
    task: UUID = await control.pool.fetchval(
        "INSERT INTO tasks (org_id, job_id, dedupe_key, timeout_seconds, woken_at)"
        " SELECT org_id, id, $2, 600, now() FROM jobs WHERE name = $1 RETURNING id",
        job,
        str(uuid4()),
    )
    await control.queue.publish("tasks-ecs_platform", [Outgoing(f'{{"task_id": "{task}"}}'.encode())])
    return task


async def test_followed_inputs_are_narrowed_and_others_are_read_in_full(system: OperatorSystem) -> None:
    text = dag(
        "SELECT a.block_number, b.value AS other, (SELECT count(*) FROM names) AS names\n"
        "  FROM numbers a LEFT JOIN again b ON a.block_number = b.block_number",
        inputs="[{from: {job: numbers}}, {from: {job: again}}, {from: {job: numbers}, name: names, trigger: false}]",
    ).replace("  - name: made", "  - {name: again, operator: numbers, inputs: [{from: {job: ask}}]}\n  - name: made")
    await system.deploy(text)
    await system.run("d", "ask", start=0, end=1)
    states = await system.run("d", "ask", start=2, end=3)
    # Of the first two inputs one exists before the other: the task created for it waits for its next attempt.
    assert set(states["made"]) == {"Completed"} or "nothing has been committed" in await system.error("made")
    # Each task reads all committed rows of `names`, not only its own two blocks.
    assert [(row["block_number"], row["other"], row["names"]) for row in await system.rows("made")] == [
        (0, 0, 2),
        (1, 10, 2),
        (2, 20, 4),
        (3, 30, 4),
    ]
    assert {item["partition_key"]: item["row_count"] for item in await system.partitions("made")} == {
        "0-1": 2,
        "2-3": 2,
    }


async def test_where_of_the_dag_narrows_what_the_query_sees(system: OperatorSystem) -> None:
    await system.deploy(dag("SELECT block_number FROM numbers", inputs="[{from: {job: numbers}, where: 'value > 20'}]"))
    await system.run("d", "ask", start=0, end=4)
    assert [row["block_number"] for row in await system.rows("made")] == [3, 4]


async def test_files_that_neither_query_nor_where_can_need_are_not_opened(system: OperatorSystem) -> None:
    """Both read the whole dataset each time, and one of its files is missing."""
    by_query = "WITH c AS (SELECT * FROM numbers) SELECT block_number FROM c WHERE block_number >= 7"
    by_where = """
  - name: picked
    operator: sql
    config: {query: SELECT count(*) AS n FROM numbers, mode: full}
    inputs: [{from: {job: numbers}, where: 'block_number IN (6, 8)'}]
publish:
  picked: {job: picked}"""
    await system.deploy(dag(by_query, "mode: full").replace("\npublish:", by_where))
    await system.run("d", "ask", start=0, end=4)
    (file,) = system.walk.control.objects.root.rglob("*0_4.parquet")  # type: ignore[attr-defined]
    file.rename(file.with_suffix(".away"))
    states = await system.run("d", "ask", start=5, end=9)
    assert (states["made"], states["picked"]) == (["Completed"] * 2, ["Completed"] * 2), await system.error("made")
    assert [row["block_number"] for row in await system.rows("made")] == [7, 8, 9]
    assert await system.rows("picked") == [{"n": 2}]


async def test_no_rows_are_a_partition_too_and_many_become_several_files(system: OperatorSystem) -> None:
    await system.deploy(dag("SELECT block_number FROM numbers WHERE value < 0"))
    states = await system.run("d", "ask", start=0, end=4)
    assert states["made"] == ["Completed"], await system.error("made")
    assert [item["row_count"] for item in await system.partitions("made")] == [0]
    assert (await system.table("made")).schema.names == ["block_number"]
    many = "SELECT block_number, explode(sequence(1, 1000)) AS n FROM numbers"
    await system.deploy(
        dag(many, "files: 3")
        .replace("name: d\n", "name: e\n")
        .replace("numbers: {job", "n2: {job")
        .replace("made: {job", "many: {job")
    )
    await system.run("e", "ask", start=0, end=99)
    (partition,) = await system.partitions("many")
    assert len(partition["files"]) == 3
    assert partition["row_count"] == 100_000
    assert len({(row["block_number"], row["n"]) for row in await system.rows("many")}) == 100_000


async def test_a_failing_query_is_one_line_and_not_retried(system: OperatorSystem) -> None:
    await system.deploy(dag("SELECT block_number, nothing AS n FROM numbers"))
    states = await system.run("d", "ask", start=0, end=4)
    assert states["made"] == ["Failed"]
    message = await system.error("made")
    assert "nothing" in message
    assert len(message) < 500, message
    await system.deploy(dag("SELECT block_number, value div (value - 20) AS n FROM numbers"))
    await system.run("d", "ask", start=0, end=4)
    message = await system.error("made")
    assert "DIVIDE_BY_ZERO" in message
    assert "Traceback" not in message
    assert "\tat " not in message


async def test_concurrent_tasks_do_not_see_each_others_rows(system: OperatorSystem) -> None:
    await system.deploy(dag("SELECT block_number, value AS v FROM numbers"))
    async with working(system.worker("one")), working(system.worker("two")):
        for start in range(0, 60, 5):
            await system.trigger("d", "ask", start=start, end=start + 4)
        states = await system.settled()
    assert states["made"] == ["Completed"] * 12
    assert [row["block_number"] for row in await system.rows("made")] == list(range(60))
    assert system.spark.catalog.listTables() == []


async def test_a_bad_query_is_refused_at_deploy_with_its_location_and_a_suggestion(system: OperatorSystem) -> None:
    for query, code, message in (
        ("SELECT a FROM numbrs", "unknown_table", "line 1, column 15 of the query: there is no table named 'numbrs'"),
        ("SELECT rand() AS x FROM numbers", "refused_sql", "another result each time"),
        ("SELECT count(*) FROM numbers", "refused_sql", "column 1 of the result has no name"),
        ("SELECT value, 1 AS Value FROM numbers", "refused_sql", "line 1, column 15 of the query: columns 1 and 2"),
    ):
        with pytest.raises(InvalidDag) as refused:
            await system.deploy(dag(query))
        (problem,) = refused.value.problems
        assert (problem.code, problem.field) == (code, "jobs[2].config.query")
        assert problem.line == 10
        assert message in problem.reason
        assert problem.suggestion


async def test_column_lineage_is_stored_at_deploy_and_shown(system: OperatorSystem) -> None:
    await system.deploy(dag("SELECT block_number, value * 2 AS twice, 1 AS one FROM numbers"))
    org = system.walk.org
    user = User(org.user, org.id, "acme", None, "admin")
    found: Any = await show_dataset(system.walk.control.pool, user, "made")
    assert [(item.column, item.input, item.input_column) for item in found.lineage] == [
        ("block_number", "numbers", "block_number"),
        ("twice", "numbers", "value"),
    ]
