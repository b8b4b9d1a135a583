"""Whatever is edited and released, every dataset ends as from scratch, also those whose files were used again."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from tests.support.dispatcher.control import WORKS
from tests.support.dispatcher.mill import MillMachine, asked, run_machine
from tests.support.dispatcher.releases import abandoned, build, promoted, rolled_back, start
from tests.support.dispatcher.run_tasks import drain, run_some
from tests.support.dispatcher.sql_jobs import Loads, as_set, queried, served_rows
from tests.support.operators import registered
from tracelake.dispatcher.versions.gaps import list_gaps
from tracelake.wire.user.backfills import GapsQuery

VALUES = st.sampled_from(["a", "b", "a + 1", "a + b", "b * 2", "7"])
CONDITIONS = st.sampled_from(["", "", " WHERE a > 1", " WHERE b > 2 OR a > 3"])
FIRST = st.builds(
    "SELECT block_number, {} AS x, {} AS y{} FROM ask{}".format,
    VALUES,
    VALUES,
    st.sampled_from(["", "", ", b AS z", ", a AS y2"]),
    CONDITIONS,
)
SECOND = st.sampled_from(
    [
        "SELECT block_number, x AS v FROM first",
        "SELECT block_number, y AS v FROM first",
        "SELECT block_number, x + y AS v, y AS w FROM first",
        "SELECT block_number, x AS v FROM first WHERE y > 2",
        "SELECT block_number, 1 AS v FROM first",
        "SELECT block_number, count(*) AS v FROM first GROUP BY block_number",
        "SELECT l.block_number, l.x AS v FROM first AS l JOIN first AS r ON l.block_number = r.block_number",
        "SELECT block_number, v FROM (SELECT block_number, x AS v, y AS w FROM first) AS inner_one",
    ]
)
THIRD = st.sampled_from(
    [
        "SELECT * FROM second",
        "SELECT block_number, v FROM second",
        "SELECT block_number, count(*) AS n FROM second GROUP BY block_number",
        "SELECT block_number FROM second WHERE v > 1",
    ]
)
QUERIES = st.tuples(FIRST, SECOND, THIRD)
SPANS = [(0, 4), (5, 9)]
ROWS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=3)
JOBS = ("first", "second", "third")
SERVED = "SELECT j.name, j.config ->> 'query' AS query FROM jobs j JOIN dag_current_versions c USING (dag_version_id)"
REUSED = "SELECT count(*) FROM tasks WHERE org_id = $1 AND memoized_from IS NOT NULL"


def dag(queries: tuple[str, ...]) -> str:
    lines = [
        "name: mill",
        "defaults: {runtime: ecs_platform}",
        "jobs:",
        "  - {name: ask, operator: works, source: {kind: manual}}",
    ]
    for name, query, source in zip(JOBS, queries, ("ask", *JOBS), strict=False):
        job = f'name: {name}, operator: sql, config: {{query: "{query}"}}, inputs: [{{from: {{job: {source}}}}}]'
        lines.append(f"  - {{{job}}}")
    return "\n".join(lines)


class ColumnMachine(MillMachine):
    reused: ClassVar[list[int]] = []

    def __init__(self) -> None:
        super().__init__()
        self.loads = Loads()

    @initialize(queries=QUERIES, values=ROWS)
    def begin(self, queries: tuple[str, ...], values: list[tuple[int, int]]) -> None:
        self.deploy_first(dag(queries))
        for span in SPANS:
            self.write(span, values)
        self.do(self.run_all(content=self.loads.content))

    @rule(queries=QUERIES)
    def activate(self, queries: tuple[str, ...]) -> None:
        self.deploy(dag(queries))

    @rule(queries=QUERIES, when_ready=st.booleans())
    def release(self, queries: tuple[str, ...], *, when_ready: bool) -> None:
        self.do(start(self.control, self.org, dag(queries), when_ready=when_ready))

    @rule(first=FIRST)
    def edit_the_first_job_and_promote(self, first: str) -> None:
        """Of what serves, nothing else changes: what is behind may read other columns."""
        found = {row["name"]: row["query"] for row in self._served()}
        self.do(start(self.control, self.org, dag((first, found["second"], found["third"])), when_ready=True))
        self.do(build(self.control, content=self.loads.content))

    @rule(verb=st.sampled_from([promoted, rolled_back, abandoned]), force=st.booleans())
    def change_release(self, verb: Callable[..., Coroutine[Any, Any, Any]], *, force: bool) -> None:
        self.change_newest_release(verb, force=force)

    @rule(span=st.sampled_from(SPANS), values=ROWS)
    def write(self, span: tuple[int, int], values: list[tuple[int, int]]) -> None:
        """The source has these rows in this range from now on, and is to write them."""
        rows = [(span[0] + place, a, b) for place, (a, b) in enumerate(values)]
        columns = zip(("block_number", "a", "b"), zip(*rows, strict=True), strict=True)
        self.loads.rows[f"{span[0]}-{span[1]}"] = pa.table({name: pa.array(v, pa.int64()) for name, v in columns})
        self.do(asked(self.control, self.org, span))

    @rule(most=st.integers(1, 6), fail=st.booleans())
    def run_tasks(self, most: int, *, fail: bool) -> None:
        self.do(drain(self.control))
        self.do(run_some(self.control, most, lambda _: fail, self.loads.content))

    def _served(self) -> list[Any]:
        return list(self.do(self.control.pool.fetch(f"{SERVED} WHERE j.org_id = $1", self.org.id)))

    async def check(self) -> None:
        await asked(self.control, self.org, *SPANS)  # a task of a source that failed is not made up for
        await self.run_all(content=self.loads.content)
        queries = {
            row["name"]: row["query"]
            for row in await self.control.pool.fetch(f"{SERVED} WHERE j.org_id = $1", self.org.id)
        }
        found: dict[str, list[Any]] = {job: [] for job in JOBS}
        for rows in self.loads.rows.values():
            tables: dict[str, Any] = {"ask": rows}
            for job in JOBS:
                tables[job] = queried(queries[job], tables)
                found[job].append(tables[job])
        for job in JOBS:
            assert await served_rows(self.control, self.org, job) == as_set(found[job]), (job, queries)
        gaps = await list_gaps(self.control.pool, self.org.as_user, GapsQuery(of="mill"))
        assert gaps.complete, gaps
        self.reused.append(await self.control.pool.fetchval(REUSED, self.org.id))


def test_every_dataset_ends_as_from_scratch_whichever_columns_are_edited(
    state_db: str, queue_db: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    ColumnMachine.reused.clear()
    with registered(works=WORKS):
        run_machine(ColumnMachine, (state_db, queue_db), tmp_path, request.config.getoption("--version-examples"))
        # Made-up histories may never edit a column that nobody reads: this one does.
        machine = ColumnMachine()
        machine.begin((edited("b"), "SELECT block_number, x AS v FROM first", "SELECT * FROM second"), [(1, 2)])
        machine.edit_the_first_job_and_promote(edited("b * 2"))
        machine.teardown()
    assert ColumnMachine.reused[-1] > 0, "no files were used again: the law said nothing about them"


def edited(y: str) -> str:
    return f"SELECT block_number, a AS x, {y} AS y FROM ask"  # noqa: S608 - a test's own text
