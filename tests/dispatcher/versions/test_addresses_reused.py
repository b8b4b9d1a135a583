"""A contract that is added to a list of addresses builds the ranges in which it has rows, and no others."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence

import asyncpg
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.dispatcher.control import WORKS, Org, an_org, deployed_and_active
from tests.support.dispatcher.job_chain import completion
from tests.support.dispatcher.mill import asked
from tests.support.dispatcher.releases import build, plan, promoted, started, state_of
from tests.support.dispatcher.run_tasks import claim_one, partition_key, partition_of, read_input, settle
from tests.support.dispatcher.sql_jobs import as_set, served_rows
from tests.support.dispatcher.staged_files import staged
from tracelake.data.files.addresses import joined, summary_of
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.versions.gaps import list_gaps
from tracelake.domain.ranges import format_partition_key, merge, parse_partition_key
from tracelake.errors import InvalidRequest
from tracelake.wire.task.lifecycle import Claimed
from tracelake.wire.user.backfills import GapsQuery

pytestmark = pytest.mark.anyio

OPERATORS = {"works": WORKS}
USDC, DAI, WETH, NOWHERE = (bytes([n]) * 20 for n in range(1, 5))
ROWS: dict[str, list[bytes | None]] = {
    "0-9": [USDC, DAI],
    "10-19": [USDC, WETH],
    "20-29": [DAI],
    "30-39": [WETH, None],
    "40-49": [],
}
REUSED = """
SELECT j.name, t.partitions[1] AS key, t.memoized_from IS NOT NULL AS reused
  FROM tasks t JOIN jobs j ON j.id = t.job_id JOIN release_members m ON m.dag_version_id = j.dag_version_id
 WHERE m.release_id = $1 AND t.status = 'Completed' AND j.name <> 'ask'
"""


def dag(*listed: bytes, condition: str = "address IN ({})") -> str:
    values = ", ".join(f"X'{address.hex()}'" for address in listed)
    query = "SELECT block_number, address FROM ask WHERE " + condition.format(values)  # noqa: S608 - of the test's own
    return f"""
name: mill
defaults: {{runtime: ecs_platform}}
jobs:
  - {{name: ask, operator: works, source: {{kind: manual}}}}
  - {{name: picked, operator: sql, config: {{query: "{query}"}}, inputs: [{{from: {{job: ask}}}}]}}
  - {{name: behind, operator: sql, config: {{query: "SELECT * FROM picked"}}, inputs: [{{from: {{job: picked}}}}]}}
publish: {{picked: {{job: picked}}}}
"""  # noqa: S608 - of the test's own


def table(addresses: Sequence[bytes | None]) -> pa.Table:
    numbers = pa.array(list(range(len(addresses))), pa.int64())
    return pa.table({"block_number": numbers, "address": pa.array(list(addresses), pa.binary())})


async def content(control: Control, task: Claimed) -> pa.Table:
    """Rows of `ROWS` by the source; `picked` selects by its list, in or not in it; `behind` copies."""
    query = task.task.config.get("query")
    if query is None:
        return table(ROWS[partition_key(partition_of(task))])
    rows = pq.read_table(io.BytesIO(await read_input(control, task)))
    return rows.filter(selects(query, rows)) if "WHERE" in query else rows


def selects(query: str, rows: pa.Table) -> pa.Array:
    listed = {bytes.fromhex(text) for text in re.findall(r"X'([0-9a-f]+)'", query)}
    wanted = "NOT IN" not in query
    found = [value is not None and (value in listed) is wanted for value in rows["address"].to_pylist()]
    return pa.array(found, pa.bool_())


@pytest.fixture
async def org(control: Control) -> Org:
    made = await an_org(control.pool)
    await deployed_and_active(control, made, dag(USDC, DAI))
    await asked(control, made, *(tuple(map(int, key.split("-"))) for key in ROWS))  # type: ignore[arg-type]
    await settle(control, content=content)
    return made


Figures = tuple[int, int, list[str]]
"""Partitions that are built, those that are used again, and the blocks of the first."""


def figures(built: set[str]) -> Figures:
    spans = merge(map(parse_partition_key, built))
    return len(built), len(ROWS) - len(built), [format_partition_key(span) for span in spans]


async def planned(control: Control, org: Org, text: str) -> dict[str, Figures]:
    rows = {row.dataset: row for row in (await plan(control, org, text)).datasets}
    assert {row.action for name, row in rows.items() if name != "ask[0]"} == {"build"}
    assert {row.more_ranges for row in rows.values()} == {0}
    return {job: (row.partitions, row.reused, row.ranges) for job, row in rows.items() if job != "ask[0]"}


async def built_by(control: Control, org: Org, text: str) -> dict[str, set[str]]:
    """Releases it; by job, the ranges whose tasks ran. All rows are then as if built from scratch."""
    release = await started(control, org, text)
    await build(control, content=content)
    assert await state_of(control, org, release) == "Ready"
    await promoted(control, org, release)
    query = next(line for line in text.splitlines() if "picked, operator" in line)
    whole = pa.concat_tables(map(table, ROWS.values()))
    for job in ("picked", "behind"):
        assert await served_rows(control, org, job) == as_set([whole.filter(selects(query, whole))]), job
    assert (await list_gaps(control.pool, org.as_user, GapsQuery(of="mill"))).complete
    found: dict[str, set[str]] = {"picked": set(), "behind": set()}
    for row in await control.pool.fetch(REUSED, release):
        found[row["name"]] |= set() if row["reused"] else {row["key"]}
    return found


@pytest.mark.parametrize(
    ("listed", "built"),
    [
        ((USDC, DAI, WETH), {"10-19", "30-39"}),
        ((DAI, USDC, NOWHERE), set()),
        ((USDC,), {"0-9", "20-29"}),
        ((WETH,), set(ROWS) - {"40-49"}),
    ],
)
async def test_only_ranges_with_rows_of_an_address_that_comes_or_goes_are_built(
    control: Control, org: Org, listed: tuple[bytes, ...], built: set[str]
) -> None:
    expected = await planned(control, org, dag(*listed))
    assert await built_by(control, org, dag(*listed)) == {"picked": built, "behind": built}
    assert expected == {"picked": figures(built), "behind[0]": figures(built)}


async def test_a_plan_counts_what_is_built_for_an_edited_list_and_other_edits_build_everything(
    control: Control, org: Org
) -> None:
    """Also of what is behind a job whose query is edited too, and of partitions whose content is not known."""
    both = dag(USDC, DAI, WETH).replace("SELECT * FROM picked", "SELECT *, 1 AS one FROM picked")
    assert await planned(control, org, both) == {"picked": figures({"10-19", "30-39"}), "behind[0]": figures(set(ROWS))}
    sizes = {
        row.dataset: (row.rows, row.bytes > 0) for row in (await plan(control, org, dag(USDC, DAI, WETH))).datasets
    }
    assert sizes == {"ask[0]": (0, False), "picked": (1, True), "behind[0]": (1, True)}
    await control.pool.execute(
        "UPDATE partition_versions p SET content_hash = NULL FROM datasets d"
        " WHERE d.id = p.dataset_uuid AND d.name = 'picked' AND p.partition_key = '0-9'"
    )
    more = {"0-9", "10-19", "30-39"}
    found = await planned(control, org, dag(USDC, DAI, WETH))
    assert found == {"picked": figures(more), "behind[0]": figures({"10-19", "30-39"})}


async def test_a_plan_whose_lists_meet_other_data_is_the_same_plan(control: Control, org: Org) -> None:
    before = await plan(control, org, dag(USDC, DAI, NOWHERE))
    await control.pool.execute("UPDATE partition_versions SET addresses = NULL")
    after = await plan(control, org, dag(USDC, DAI, NOWHERE))
    assert [sum(row.partitions for row in found.datasets) for found in (before, after)] == [0, 2 * len(ROWS)]
    assert before.hash == after.hash


async def test_a_list_of_what_is_left_out_is_compared_in_the_same_way(control: Control, org: Org) -> None:
    others = "address NOT IN ({})"
    found = await built_by(control, org, dag(USDC, condition=others))
    assert found["picked"] == set(ROWS), "it is another query"
    found = await built_by(control, org, dag(USDC, WETH, condition=others))
    assert found == {"picked": {"10-19", "30-39"}, "behind": {"10-19"}}, "30-39 is empty, as it was by the first query"


async def test_another_condition_beside_the_list_builds_every_range(control: Control, org: Org) -> None:
    changed = dag(USDC, DAI, condition="address IN ({}) AND block_number >= 0")
    assert (await built_by(control, org, changed))["picked"] == set(ROWS)


async def test_ranges_whose_addresses_are_not_known_are_built(control: Control, org: Org) -> None:
    """As those are that an earlier release wrote."""
    await control.pool.execute("UPDATE partition_versions SET addresses = NULL WHERE partition_key <> '20-29'")
    expected = await planned(control, org, dag(USDC, DAI, NOWHERE))
    assert (await built_by(control, org, dag(USDC, DAI, NOWHERE)))["picked"] == set(ROWS) - {"20-29"}
    assert expected["picked"] == figures(set(ROWS) - {"20-29"})


@pytest.mark.parametrize("count", [0, 1, 7, 1_000, 5_000])
async def test_no_address_of_a_summary_is_missed_and_few_others_seem_to_be_there(control: Control, count: int) -> None:
    values = [n.to_bytes(20) for n in range(count)]
    whole = joined([summary_of(values[::2]), summary_of(values[1::2]), summary_of(values[:3])])
    for summary in (summary_of(values), whole):
        assert await held(control.pool, summary, values) == count
        unlisted = await held(control.pool, summary, [n.to_bytes(20) for n in range(10**6, 10**6 + 400)])
        assert unlisted <= (200 if count == 5_000 else 40)


async def held(pool: asyncpg.Pool, summary: bytes | None, values: Sequence[bytes]) -> int:
    sql = "SELECT count(*) FROM unnest($2::bytea[]) a WHERE may_hold($1, a)"
    return int(await pool.fetchval(sql, summary, values))


async def test_a_completion_with_a_summary_of_another_size_is_refused(control: Control) -> None:
    org = await an_org(control.pool)
    await deployed_and_active(control, org, dag(USDC))
    await asked(control, org, (0, 9))
    drain = control.drain()
    while await drain.once():
        pass
    task, claims = await claim_one(control) or pytest.fail("nothing to claim")
    (body,) = staged(control.objects, task, (0, 9))
    request = completion(task, outputs=[msgspec.structs.replace(body, addresses=b"abc")])
    with pytest.raises(InvalidRequest, match="has 3 bytes") as refusal:
        await control.completer()(request, claims)
    assert refusal.value.where == "/outputs/0/addresses"
