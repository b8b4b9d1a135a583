"""A compaction that is changed begins a new generation of files, while the hot tables go on: no row is lost over it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.chain.queries import query_answerer, run_query
from tests.support.dispatcher.control import deployed_and_active
from tests.support.systems.chain import FOLLOW, ChainSystem, rows_of, truth
from tests.support.systems.walk import working
from tests.support.verbs import activate_dag
from tracelake.domain.access.object_names import Folder
from tracelake.errors import Unavailable
from tracelake.query.answer import QueryAnswerer
from tracelake.wire.json_values import plain
from tracelake.worker.wrapper import Wrapper

pytestmark = pytest.mark.anyio
TABLES = ("blocks", "transactions", "logs")
PUBLISHED = """
publish:
  chain_blocks: {job: follow, output: blocks}
  chain_transactions: {job: follow, output: transactions}
  chain_logs: {job: follow, output: logs}
"""
SMALL = FOLLOW + PUBLISHED
LARGE = SMALL.replace("size: 20", "size: 30")
AGAIN = SMALL.replace(
    "  - name: compact\n",
    "  - {name: again, operator: noop, runtime: dispatcher, source: {kind: manual}}\n  - name: compact\n",
).replace("      - {from: {job: gather}}\n", "      - {from: {job: gather}}\n      - {from: {job: again}}\n")
"""The same ranges, by a compaction that is not the same: one more input."""


@pytest.mark.long
async def test_a_query_sees_every_row_when_the_ranges_of_a_compaction_have_changed_and_changed_back(
    system: ChainSystem, tmp_path: Path
) -> None:
    first = await deployed_and_active(system.walk.control, system.walk.org, SMALL)
    answerer = query_answerer(system, tmp_path)
    async with working(without_spark(system)):
        hot = await grown(system, 21)
        assert min(system.hot_marks(hot)) >= 20, "what is cold has left the hot table"
        former = await system.version("live", "compact")

        await system.deploy(LARGE)
        assert await system.version("live", "follow") == hot
        assert await system.version("live", "compact") != former
        await equal(system, answerer)

        await grown(system, 70)
        assert await cold_of(system, "blocks"), "the new generation is being filled"
        await system.until_equal(lambda: equal(system, answerer))

        await activate_dag(system.walk.control, system.walk.org.id, "live", first.dag_version_id)
        assert await system.version("live", "compact") == former
        await equal(system, answerer)
        system.devchain.reorg(80)  # far into what either of them has compacted
        await grown(system, 40)
        await system.until_equal(lambda: equal(system, answerer))
    assert await system.failures() == []


async def test_a_changed_compaction_makes_its_past_from_the_files_of_the_one_before_it(
    system: ChainSystem, tmp_path: Path
) -> None:
    await system.deploy(SMALL)
    answerer = query_answerer(system, tmp_path)
    async with working(without_spark(system)):
        hot = await grown(system, 21)
        oldest = min(system.hot_marks(hot))
        assert oldest >= 20
        await system.deploy(AGAIN)
        await system.settled()
        await system.until_equal(lambda: refilled(system, oldest))
        await system.until_equal(lambda: equal(system, answerer))
    assert await system.failures() == []


async def refilled(system: ChainSystem, oldest: int) -> None:
    """The new generation holds, row for row, what the hot table has lost, and maybe more."""
    last = max((int(str(row["block_number"])) for row in await cold_of(system, "blocks")), default=-1)
    assert last >= oldest - 1
    for table in TABLES:
        found = await cold_of(system, table)
        assert sorted(found, key=str) == sorted(truth(system.devchain, table, 0, last), key=str), table


def without_spark(system: ChainSystem) -> Wrapper:
    """A worker that follows and compacts by itself: Spark is there for the queries."""
    return replace(system, spark=None).worker()


async def grown(system: ChainSystem, blocks: int) -> UUID:
    """The chain grows, and everything that follows from it is done."""
    hot = await system.version("live", "follow")
    await system.until_followed(hot)
    await system.settled()
    system.devchain.mine(blocks)
    await system.until_followed(hot)
    await system.settled()
    return hot


async def equal(system: ChainSystem, answerer: QueryAnswerer) -> None:
    """What a query finds of each table is the chain, row for row."""
    head = system.devchain.describe()["head"]
    for table in TABLES:
        rows = truth(system.devchain, table, 0, head)
        expected = [[plain(value) for value in row.values()] for row in rows]
        names = ", ".join(rows[0])
        try:
            found = await run_query(answerer, f"SELECT {names} FROM chain_{table}")  # noqa: S608 - its columns
        except Unavailable as away:
            raise AssertionError(away.message) from None
        assert sorted(found, key=str) == sorted(expected, key=str), table


async def cold_of(system: ChainSystem, table: str) -> list[dict[str, object]]:
    """The rows of the generation that is served, and of no other."""
    rows = await system.walk.control.pool.fetch(
        "SELECT p.location, f ->> 'name' AS name FROM partition_versions p, jsonb_array_elements(p.files) f"
        " WHERE p.dataset_version = $1 AND p.valid_to IS NULL",
        await system.version("live", "compact", TABLES.index(table)),
    )
    objects = system.walk.control.objects
    bodies = [objects.get(Folder.parse(row["location"]).object(row["name"])) for row in rows]
    return rows_of(pa.concat_tables([pq.read_table(pa.BufferReader(body)) for body in bodies]), table) if bodies else []
