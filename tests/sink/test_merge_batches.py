"""A merge by itself: whatever way the rows go in, the table is what the batches say, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from tracelake.data.buffered.merge_batches import MANY_ROWS, SOME_ROWS, Waiting, merge_batches
from tracelake.data.buffered.stage_batches import staging_columns
from tracelake.data.buffered.tables import BufferedTable, ensure
from tracelake.data.postgres.staging import make_staging
from tracelake.data.statements import statements
from tracelake.domain.buffered import Column, Declaration
from tracelake.errors import BadInput

MANY = MANY_ROWS + SOME_ROWS
DECLARED = Declaration((Column("key", "text", nullable=False), Column("amount", "uint256")), ("key",), ())
Batch = tuple[range, int]
"""Which keys, and the amount of each."""


@pytest.fixture
def connection(data_db: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(data_db, autocommit=True) as opened:
        yield opened


@pytest.fixture
def table(connection: psycopg.Connection[Any]) -> BufferedTable:
    made = BufferedTable(uuid4(), uuid4(), uuid4(), DECLARED)
    ensure(connection, made)
    return made


def merged(
    connection: psycopg.Connection[Any], table: BufferedTable, batches: Sequence[Batch], tried: int = 7
) -> list[UUID]:
    """Batches staged, beside rows of tries that do not count, and merged together; their publishes."""
    staging = make_staging(connection, staging_columns(DECLARED))
    fill = f"INSERT INTO staging.{staging} SELECT 'k' || n, %s, %s, %s FROM unnest(%s::int[]) n"  # noqa: S608
    waiting = []
    for number, (keys, amount) in enumerate(batches):
        connection.execute(fill.encode(), (str(amount), number, tried, list(keys)))
        connection.execute(fill.encode(), ("999", number, tried + 1, list(keys)))
        waiting.append(Waiting(uuid4(), uuid4(), 1, number, tried, len(keys), 1))
    assert len(merge_batches(connection, table, staging, waiting)) == len(waiting)
    return [item.publish_id for item in waiting]


def found(connection: psycopg.Connection[Any], table: BufferedTable) -> dict[str, tuple[int, UUID]]:
    rows = connection.execute(f"SELECT key, amount, publish_id FROM buffered.{table.name}".encode())  # noqa: S608
    return {key: (int(amount), publish) for key, amount, publish in rows}


@pytest.mark.parametrize(
    "rounds",
    [
        [[(range(MANY), 1)], [(range(MANY, 2 * MANY), 2)]],
        [[(range(MANY), 1)], [(range(MANY), 2)]],
        [[(range(1), 1)], [(range(1, MANY + 1), 2)], [(range(MANY, -1, -1), 3)]],
        [[(range(5, 6), 1)], [(range(MANY, 2 * MANY), 2), (range(MANY - 1, MANY + 9), 3)], [(range(3), 4)]],
        [[(range(MANY - 1, MANY), 1)], [(range(MANY), 2)]],
        [[(range(MANY), 1), (range(10, MANY), 2), (range(20, MANY + 20), 3)]],
    ],
    ids=["all are new", "all are known", "one more is known", "known in a small one", "the last is known", "together"],
)
def test_a_table_is_what_its_batches_say_in_their_order(
    connection: psycopg.Connection[Any], table: BufferedTable, rounds: Sequence[Sequence[Batch]]
) -> None:
    expected: dict[str, tuple[int, UUID]] = {}
    for batches in rounds:
        for (keys, amount), publish in zip(batches, merged(connection, table, batches), strict=True):
            expected |= {f"k{key}": (amount, publish) for key in keys}
    assert found(connection, table) == expected


def test_a_large_batch_that_is_sent_again_changes_nothing(
    connection: psycopg.Connection[Any], table: BufferedTable
) -> None:
    merged(connection, table, [(range(MANY), 1)])
    before = found(connection, table)
    merged(connection, table, [(range(MANY), 1)])
    assert found(connection, table) == before


def test_a_value_that_postgres_refuses_leaves_nothing_of_a_large_batch(
    connection: psycopg.Connection[Any], table: BufferedTable
) -> None:
    staging = make_staging(connection, staging_columns(DECLARED))
    fill = f"INSERT INTO staging.{staging} SELECT 'k' || n, CASE n WHEN %s THEN 'x' ELSE '1' END, 0, 7"
    connection.execute(f"{fill} FROM generate_series(1, %s) n".encode(), (MANY, MANY))
    with pytest.raises(BadInput):
        merge_batches(connection, table, staging, [Waiting(uuid4(), uuid4(), 1, 0, 7, MANY, 1)])
    assert found(connection, table) == {}
    assert connection.execute("SELECT FROM trace_meta.applied_batches").fetchall() == []


def test_the_next_batch_is_not_kept_waiting_by_a_merge_into_a_table_that_lacks_nothing(
    connection: psycopg.Connection[Any], table: BufferedTable, data_db: str
) -> None:
    with psycopg.connect(data_db) as merging:
        merging.execute(statements("buffered")["lock_table"], {"version": table.dataset_version})
        connection.execute("SET lock_timeout = '1s'")
        assert ensure(connection, table) == DECLARED
        wider = replace(DECLARED, columns=(*DECLARED.columns, Column("note", "text")))
        with pytest.raises(psycopg.errors.LockNotAvailable):
            ensure(connection, replace(table, declaration=wider))
    assert ensure(connection, replace(table, declaration=wider)) == wider
    assert ensure(connection, table) == wider


@pytest.mark.parametrize("rows", [2, MANY])
def test_keys_that_are_written_apart_and_are_one_to_postgres_are_one_row(
    connection: psycopg.Connection[Any], rows: int
) -> None:
    declared = Declaration((Column("key", "decimal(10,2)", nullable=False), Column("n", "bigint")), ("key",), ())
    table = BufferedTable(uuid4(), uuid4(), uuid4(), declared)
    ensure(connection, table)
    staging = make_staging(connection, staging_columns(declared))
    fill = f"INSERT INTO staging.{staging} SELECT n || '.0', n, 0, 7 FROM generate_series(2, %s) n"  # noqa: S608
    connection.execute(f"{fill} UNION ALL SELECT '2.00', 2, 0, 7".encode(), (rows,))
    merge_batches(connection, table, staging, [Waiting(uuid4(), uuid4(), 1, 0, 7, rows, 1)])
    (found,) = connection.execute(f"SELECT count(*), sum(n) FROM buffered.{table.name}".encode()).fetchall()  # noqa: S608
    assert found == (rows - 1, sum(range(2, rows + 1)))
