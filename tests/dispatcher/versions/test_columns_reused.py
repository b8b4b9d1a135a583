"""A job that reads none of the columns that change in its input uses its files again: in fact, and in the plan."""

from __future__ import annotations

from uuid import UUID

import msgspec
import pyarrow as pa
import pytest

from tests.support.dispatcher.control import WORKS, Org, an_org, deployed_and_active
from tests.support.dispatcher.job_chain import completion
from tests.support.dispatcher.mill import asked
from tests.support.dispatcher.releases import build, plan, promoted, rolled_back, started, state_of
from tests.support.dispatcher.run_tasks import claim_one, settle
from tests.support.dispatcher.sql_jobs import Loads, as_set, queried, served_rows
from tests.support.dispatcher.staged_files import staged
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.dags.catalog import codes
from tracelake.dispatcher.versions.gaps import list_gaps
from tracelake.errors import InvalidRequest
from tracelake.wire.user.backfills import GapsQuery

pytestmark = pytest.mark.anyio

OPERATORS = {"works": WORKS}
ORDERS = "SELECT block_number, a AS x, b AS y FROM ask"
READERS = {
    "named": "SELECT block_number, x * 2 AS twice FROM orders",
    "filtered": "SELECT block_number, x FROM orders WHERE y > 3",
    "starred": "SELECT * FROM orders",
    "counted": "SELECT block_number, count(*) AS n FROM orders GROUP BY block_number",
    "behind": "SELECT block_number, twice + 1 AS more FROM named",
}
ALL = set(READERS)
OF_X, OF_Y, OF_A_NEW_COLUMN = {"named", "filtered", "starred", "behind"}, {"filtered", "starred"}, {"starred"}
EDITS = {
    "SELECT block_number, a AS x, b + 1 AS y FROM ask": OF_Y,
    "SELECT block_number, a AS x, CAST(b AS STRING) AS y FROM ask": OF_Y,
    "SELECT block_number, a AS x, coalesce(b, c) AS y FROM ask": OF_Y,
    "SELECT block_number, a AS x, x + 1 AS y FROM ask": OF_Y,
    "SELECT block_number, a AS x, CASE WHEN b > 1 THEN 1 ELSE 0 END AS y FROM ask": OF_Y,
    "SELECT block_number, a AS x, b AS Y FROM ask": OF_Y,
    "SELECT block_number, a AS x, b AS y, c FROM ask": OF_A_NEW_COLUMN,
    "SELECT c, block_number, a AS x, b AS y FROM ask": OF_A_NEW_COLUMN,
    "SELECT block_number, a AS x, b AS y, a + b AS z, c AS w FROM ask": OF_A_NEW_COLUMN,
    "SELECT block_number, c AS x, b AS y FROM ask": OF_X,
    "SELECT block_number, a + 1 AS x, x AS y FROM ask": OF_X,
    "SELECT block_number, b AS x, a AS y FROM ask": OF_X,
    "SELECT block_number, b AS y, a AS x FROM ask": ALL,
    "SELECT block_number + 0 AS block_number, a AS x, b AS y FROM ask": ALL,
    "SELECT block_number, a AS x, b AS y FROM ask WHERE b > 2": ALL,
    "SELECT block_number, a AS x, b AS y FROM ask ORDER BY b": ALL,
    "SELECT block_number, a AS x, b AS y FROM ask ORDER BY b LIMIT 3": ALL,
    "SELECT DISTINCT block_number, a AS x, b + 1 AS y FROM ask": ALL,
    "SELECT block_number, a AS x, max(b) AS y FROM ask GROUP BY block_number, a": ALL,
    "SELECT block_number, a AS x, explode(array(b, b)) AS y FROM ask": ALL,
    "SELECT block_number, a AS x, b AS y FROM ask UNION ALL SELECT block_number, a, b FROM ask": ALL,
    "SELECT l.block_number, l.a AS x, l.b AS y FROM ask l JOIN ask r ON l.c = r.c": ALL,
    "SELECT block_number, a AS x, row_number() OVER (ORDER BY b) AS y FROM ask": ALL,
    "SELECT block_number, a AS x, (SELECT max(b) FROM ask) AS y FROM ask": ALL,
    "SELECT block_number, x, y FROM (SELECT block_number, a AS x, b + 1 AS y FROM ask) AS s": ALL,
    "SELECT block_number, a AS x, b AS y FROM ask LATERAL VIEW explode(array(1, 2)) e AS z": ALL,
}
"""Edits of `orders`, and which of its readers are built."""
KEYS = ["0-9", "10-19", "20-29"]
REUSED = """
SELECT j.name, count(*) FILTER (WHERE t.memoized_from IS NOT NULL) AS reused, count(*) AS tasks
  FROM tasks t JOIN jobs j ON j.id = t.job_id JOIN release_members m ON m.dag_version_id = j.dag_version_id
 WHERE m.release_id = $1 AND t.status = 'Completed'
 GROUP BY 1
"""


def dag(orders: str = ORDERS, source: str = "{job: ask}", where: str = "") -> str:
    """`where`: of every reader of `orders`."""
    lines = [
        "name: mill",
        "defaults: {runtime: ecs_platform}",
        "jobs:",
        "  - {name: ask, operator: works, source: {kind: manual}}",
        f'  - {{name: orders, operator: sql, config: {{query: "{orders}"}}, inputs: [{{from: {source}}}]}}',
    ]
    for name, query in READERS.items():
        read = "{job: named}" if name == "behind" else f"{{job: orders}}{where}"
        lines.append(f'  - {{name: {name}, operator: sql, config: {{query: "{query}"}}, inputs: [{{from: {read}}}]}}')
    return "\n".join([*lines, "publish:", "  orders: {job: orders}"])


@pytest.fixture
def loads() -> Loads:
    return Loads({key: numbers(10 * place) for place, key in enumerate(KEYS)})


def numbers(first: int) -> pa.Table:
    rows = range(first, first + 10)
    columns = {"block_number": rows, "a": [n * 7 % 5 for n in rows], "b": [n % 6 for n in rows], "c": rows}
    return pa.table({name: pa.array(list(values), pa.int64()) for name, values in columns.items()})


@pytest.fixture
async def org(control: Control, loads: Loads) -> Org:
    made = await an_org(control.pool)
    await deployed_and_active(control, made, dag())
    await asked(control, made, (0, 9), (10, 19), (20, 29))
    await settle(control, content=loads.content)
    return made


async def released(control: Control, org: Org, loads: Loads, text: str) -> tuple[UUID, set[str]]:
    """Builds and promotes; the release, and the jobs none of whose tasks ran."""
    release = await started(control, org, text)
    await build(control, content=loads.content)
    assert await state_of(control, org, release) == "Ready"
    await promoted(control, org, release)
    rows = await control.pool.fetch(REUSED, release)
    return release, {row["name"] for row in rows if row["reused"] == row["tasks"] == len(KEYS)}


async def expect_as_from_scratch(control: Control, org: Org, loads: Loads, orders: str) -> None:
    tables = {"ask": pa.concat_tables(loads.rows.values())}
    tables["orders"] = queried(orders, tables)
    for name, query in READERS.items():
        tables[name] = queried(query, tables)
        assert await served_rows(control, org, name) == as_set([tables[name]]), name
    assert (await list_gaps(control.pool, org.as_user, GapsQuery(of="mill"))).complete


@pytest.mark.parametrize(
    ("edit", "unread"),
    [
        ("SELECT block_number, a AS x, b + 1 AS y FROM ask", {"named", "counted", "behind"}),
        ("SELECT block_number, a AS x, b AS y, c AS z FROM ask", {"named", "filtered", "counted", "behind"}),
        ("SELECT block_number, a + 1 AS x, b AS y FROM ask", {"counted"}),
        ("SELECT block_number, a AS x, b AS y FROM ask WHERE b > 2", set()),
        ("SELECT c AS block_number, a AS x, b AS y FROM ask", {"named", "filtered", "starred", "counted", "behind"}),
    ],
)
async def test_jobs_that_read_no_changed_column_do_not_run_and_all_rows_are_as_from_scratch(
    control: Control, org: Org, loads: Loads, edit: str, unread: set[str]
) -> None:
    """The last edit changes no values, so that even a star reads the same."""
    release, reused = await released(control, org, loads, dag(edit))
    assert reused == unread
    await expect_as_from_scratch(control, org, loads, edit)
    loads.rows["30-39"] = numbers(30)
    await asked(control, org, (30, 39))
    await settle(control, content=loads.content)
    await expect_as_from_scratch(control, org, loads, edit)
    await rolled_back(control, org, release)
    await build(control, content=loads.content)
    await expect_as_from_scratch(control, org, loads, ORDERS)


async def test_a_plan_names_the_columns_that_change_and_those_that_are_read(control: Control, org: Org) -> None:
    found = await plan(control, org, dag("SELECT block_number, a AS x, b + 1 AS y FROM ask"))
    rows = {row.dataset: row for row in found.datasets}
    assert {name: (row.cause, row.action, row.partitions, row.reused) for name, row in rows.items()} == {
        "ask[0]": ("metadata", "carry on", 0, 3),
        "orders": ("edited", "build", 3, 0),
        "named[0]": ("upstream", "reuse", 0, 3),
        "filtered[0]": ("upstream", "build", 3, 0),
        "starred[0]": ("upstream", "build", 3, 0),
        "counted[0]": ("upstream", "reuse", 0, 3),
        "behind[0]": ("upstream", "reuse", 0, 3),
    }
    ((of_orders,), (of_named,)) = rows["named[0]"].unread, rows["behind[0]"].unread
    assert (of_orders.input, of_orders.changed, of_orders.read) == ("orders", ["y"], ["block_number", "x"])
    assert (of_named.input, of_named.changed) == ("named", [])


async def test_a_plan_builds_what_reads_a_changed_column_and_all_that_may_have_other_rows(
    control: Control, org: Org
) -> None:
    found = {}
    for edit in EDITS:
        rows = {row.dataset: row.action for row in (await plan(control, org, dag(edit))).datasets}
        found[edit] = {name.removesuffix("[0]") for name, action in rows.items() if action == "build"} - {"orders"}
    assert found == EDITS


async def test_a_filter_of_an_input_counts_as_read_and_a_changed_one_builds_everything(
    control: Control, org: Org, loads: Loads
) -> None:
    narrowed = ", where: 'y > 1'"
    await released(control, org, loads, dag(where=narrowed))
    edit = "SELECT block_number, a AS x, b + 1 AS y FROM ask"
    rows = {row.dataset: row.action for row in (await plan(control, org, dag(edit, where=narrowed))).datasets}
    assert "reuse" not in rows.values(), "every reader of `orders` reads y by its filter"
    filtered = dag(ORDERS, "{job: ask}, where: 'b > 1'")
    rows = {row.dataset: row.action for row in (await plan(control, org, filtered)).datasets}
    assert set(rows.values()) == {"carry on", "build"}


async def test_a_deploy_stores_the_columns_that_each_job_reads(control: Control, org: Org) -> None:
    """Those of its query, of the input's filter, and the one that selects the rows of a range."""
    await deployed_and_active(control, org, dag(where=", where: 'Z > 1'"))
    rows = await control.pool.fetch(
        "SELECT j.name, i.columns_read FROM job_inputs i JOIN jobs j ON j.id = i.job_id WHERE i.live"
    )
    assert {row["name"]: row["columns_read"] and set(row["columns_read"]) for row in rows} == {
        "orders": {"block_number", "a", "b"},
        "named": {"block_number", "x", "z"},
        "filtered": {"block_number", "x", "y", "z"},
        "starred": None,
        "counted": {"block_number", "z"},
        "behind": {"block_number", "twice"},
    }


async def test_partitions_without_hashes_of_their_columns_are_read_whole(
    control: Control, org: Org, loads: Loads
) -> None:
    """As those are that an earlier release wrote: the jobs behind them run, and the plan says so."""
    await control.pool.execute("UPDATE partition_versions SET column_hashes = NULL")
    await control.pool.execute("UPDATE tasks SET memo_key = memo_key(id, $1) WHERE memo_key IS NOT NULL", codes())
    edit = "SELECT block_number, a AS x, b + 1 AS y FROM ask"
    rows = {row.dataset: row.action for row in (await plan(control, org, dag(edit))).datasets}
    assert rows["named[0]"] == "build"
    _, reused = await released(control, org, loads, dag(edit))
    assert reused == {"behind"}, "what is written again is the same as before"
    await expect_as_from_scratch(control, org, loads, edit)


async def test_a_reader_in_another_dag_uses_its_files_again_too(control: Control, loads: Loads) -> None:
    org = await an_org(control.pool)
    await deployed_and_active(control, org, dag())
    shop = (
        "name: shop\ndefaults: {runtime: ecs_platform}\njobs:\n"
        '  - {name: sell, operator: sql, config: {query: "SELECT block_number, x FROM orders"},'
        " inputs: [{from: {dataset: orders}}]}\n"
    )
    await deployed_and_active(control, org, shop)
    await asked(control, org, (0, 9), (10, 19), (20, 29))
    await settle(control, content=loads.content)
    edit = "SELECT block_number, a AS x, b + 1 AS y FROM ask"
    found = {(row.dag, row.dataset): row.action for row in (await plan(control, org, dag(edit))).datasets}
    assert found["shop", "sell[0]"] == "reuse"
    _, reused = await released(control, org, loads, dag(edit))
    assert "sell" in reused


async def test_a_completion_whose_column_hashes_are_not_of_its_columns_is_refused(control: Control) -> None:
    org = await an_org(control.pool)
    await deployed_and_active(control, org, dag())
    await asked(control, org, (0, 9))
    drain = control.drain()
    while await drain.once():
        pass
    held = await claim_one(control)
    assert held is not None
    task, claims = held
    (body,) = staged(control.objects, task, (0, 9))
    for hashes in ({}, {"other": "x"}, {"block_number": "x", "more": "y"}):
        request = completion(task, outputs=[msgspec.structs.replace(body, column_hashes=hashes)])
        with pytest.raises(InvalidRequest, match="hashes of all its columns") as refusal:
            await control.completer()(request, claims)
        assert refusal.value.where == "/outputs/0/column_hashes"
    count = await control.pool.fetchval("SELECT count(*) FROM commits")
    assert count == 0
    good = msgspec.structs.replace(body, column_hashes={"block_number": "x"})
    await control.completer()(completion(task, outputs=[good]), claims)
    stored = await control.pool.fetchval("SELECT column_hashes FROM partition_versions")
    assert stored == {"block_number": "x"}
