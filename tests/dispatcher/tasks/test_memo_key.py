"""The content that a task reads: equal hashes for equal partitions, whatever their generation and commits."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from uuid import UUID, uuid4

import asyncpg
import pytest

pytestmark = pytest.mark.anyio

INSERT = """
INSERT INTO partition_versions (dataset_version, partition_key, valid_from, valid_to, org_id, dataset_uuid, block_range,
                                location, content_hash)
VALUES ($1, coalesce($2, block_range_key(int8range($3, $4))), $5, $6, gen_random_uuid(), gen_random_uuid(),
        CASE WHEN $3::bigint IS NOT NULL THEN int8range($3, $4) END, '', sha256(convert_to($7, 'UTF8')))
"""
READ = "SELECT content_read($1, $2, CASE WHEN $3::bigint IS NOT NULL THEN int8range($3, $4) END, $5)"
Part = tuple[int, str]
"""The tens of blocks, and the content."""


@pytest.fixture
async def database(state_db: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(state_db)
    await connection.execute("SET session_replication_role = replica")  # only partitions are there
    yield connection
    await connection.close()


async def generation(database: asyncpg.Connection, parts: list[Part], *, commit: int) -> UUID:
    made = uuid4()
    for tens, content in parts:
        await database.execute(INSERT, made, None, 10 * tens, 10 * tens + 10, commit, None, content)
    return made


async def read(
    database: asyncpg.Connection, version: UUID, start: int | None, stop: int | None, commit: int = 100
) -> bytes | None:
    found: bytes | None = await database.fetchval(READ, version, commit, start, stop, None)
    return found


async def test_two_generations_read_the_same_exactly_if_the_partitions_in_the_range_hold_the_same(
    database: asyncpg.Connection,
) -> None:
    chance = random.Random(17)  # noqa: S311 - made-up contents
    for _ in range(60):
        first, second = ([(tens, chance.choice("ab")) for tens in range(4)] for _ in range(2))
        ours, theirs = await generation(database, first, commit=3), await generation(database, second, commit=8)
        start, stop = sorted(chance.sample(range(41), 2))
        within = [tens for tens in range(4) if 10 * tens < stop and start < 10 * tens + 10]
        same = [first[tens] for tens in within] == [second[tens] for tens in within]
        assert (await read(database, ours, start, stop) == await read(database, theirs, start, stop)) == same


async def test_the_commit_decides_what_is_read(database: asyncpg.Connection) -> None:
    version = await generation(database, [(0, "new")], commit=9)
    await database.execute(INSERT, version, None, 0, 10, 4, 9, "old")
    old = await generation(database, [(0, "old")], commit=1)
    assert await read(database, version, 0, 10, 8) == await read(database, old, 0, 10, 8)
    assert await read(database, version, 0, 10, 9) != await read(database, old, 0, 10, 9)


async def test_labels_ranges_and_the_whole_have_different_hashes(database: asyncpg.Connection) -> None:
    version = uuid4()
    for label in ("x", "y"):
        await database.execute(INSERT, version, label, None, None, 1, None, "same")
    x, y = [await database.fetchval(READ, version, 5, None, None, label) for label in ("x", "y")]
    whole = await read(database, version, None, None)
    assert len({x, y, whole, None}) == 4


async def test_what_is_not_known_or_too_much_has_no_hash(database: asyncpg.Connection) -> None:
    version = await generation(database, [(tens, "a") for tens in range(2)], commit=1)
    assert await read(database, version, 500, 510) is None, "there is nothing"
    assert await read(database, uuid4(), None, None) is None
    await database.execute("UPDATE partition_versions SET content_hash = NULL WHERE partition_key = '0-9'")
    assert [await read(database, version, 0, 20) is None, await read(database, version, 10, 20) is None] == [
        True,
        False,
    ]
    large = await generation(database, [(tens, "a") for tens in range(1001)], commit=1)
    assert await read(database, large, None, None) is None
    assert await read(database, large, 0, 10_000) is not None
