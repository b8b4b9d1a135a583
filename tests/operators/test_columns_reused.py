"""On Spark: after an edit of one column, jobs that do not read it are not run, and all rows are right."""

from __future__ import annotations

import pytest

from tests.support.dispatcher.releases import promoted, started, state_of
from tests.support.systems.operators import OperatorSystem, numbers_dag
from tests.support.systems.walk import working
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("numbers")]

READERS = {
    "halved": "SELECT block_number, plain / 2 AS half FROM made WHERE length(text) > 0",
    "counted": "SELECT block_number % 2 AS odd, count(*) AS n FROM made GROUP BY block_number % 2",
    "listed": "SELECT block_number, tags[0] AS first_tag FROM made",
    "changed": "SELECT block_number, edited FROM made",
}
TASKS = """
SELECT j.name, bool_and(t.memoized_from IS NOT NULL) AS reused
  FROM tasks t JOIN jobs j ON j.id = t.job_id JOIN release_members m ON m.dag_version_id = j.dag_version_id
 WHERE m.release_id = $1
 GROUP BY 1
"""


def dag(edited: str) -> str:
    made = f"SELECT block_number, value AS plain, '{{}}' || value AS text, array(value) AS tags, {edited} AS edited"
    jobs = {"made": (f"{made} FROM numbers", "numbers")} | {name: (query, "made") for name, query in READERS.items()}
    lines = [
        f'  - {{name: {name}, operator: sql, config: {{query: "{query}"}}, inputs: [{{from: {{job: {source}}}}}]}}'
        for name, (query, source) in jobs.items()
    ]
    published = [f"  {name}: {{job: {name}}}" for name in jobs]
    return numbers_dag() + "\n".join([*lines, "publish:", *published])


async def test_jobs_that_read_no_changed_column_use_their_files_again(system: OperatorSystem) -> None:
    await system.deploy(dag("value * 2"))
    await system.run("d", "ask", start=0, end=9)
    await system.run("d", "ask", start=10, end=19)
    before = {name: await system.rows(name) for name in READERS}
    control, org = system.walk.control, system.walk.org
    release = await started(control, org, dag("value * 3"))

    async def is_ready() -> bool:
        return await state_of(control, org, release) == "Ready"

    async with working(system.worker()):
        await until(is_ready, "the release is ready")
    await promoted(control, org, release)
    found = {row["name"]: row["reused"] for row in await system.fetch(TASKS, release)}
    assert found == {"made": False, "halved": True, "counted": True, "listed": True, "changed": False}
    assert {name: await system.rows(name) for name in before if name != "changed"} == {
        name: rows for name, rows in before.items() if name != "changed"
    }
    assert await system.rows("changed") == [{"block_number": n, "edited": n * 30} for n in range(20)]
