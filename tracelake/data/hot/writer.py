"""Writes blocks into hot tables: all tables or none, inside the caller's transaction.

Writers of a table queue (a row lock in `hot_tables`), so two never interleave, and `seq` rises in commit order. What
the caller adds to the transaction (its progress, its outbox) is committed or rolled back with the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from tracelake.data.hot.extent import Extent, after_write
from tracelake.data.hot.tables import HotTable
from tracelake.data.postgres.copy_rows import copy_rows
from tracelake.data.statements import statements
from tracelake.errors import BadInput, Conflict, NotFound


@dataclass(frozen=True)
class BlockMark:
    """A block that was written, with or without rows."""

    number: int
    hash: bytes
    parent_hash: bytes


def rewrite(
    connection: psycopg.Connection[Any],
    tables: Mapping[HotTable, pa.Table],
    blocks: Sequence[BlockMark],
    replace_from: int | None = None,
) -> int:
    """Write these blocks in place of the same ones, or of all from `replace_from` on; return the rows written.

    Each table gets its rows of all the blocks, and the same marks. Without `replace_from`, any numbers are allowed.
    """
    numbers = _numbers(blocks)
    fitted = {table: _fit(table, rows, numbers) for table, rows in tables.items()}
    if not tables or not (numbers or replace_from is not None):
        return 0
    versions = sorted(table.dataset_version for table in tables)
    with connection.transaction():
        before = _lock(connection, versions)
        after = {version: after_write(before[version], numbers, replace_from) for version in versions}
        _forget(connection, tables, numbers, replace_from)
        written = sum(copy_rows(connection, table.identifier, rows) for table, rows in fitted.items())
        _mark(connection, versions, blocks)
        _set_extents(connection, after)
    return written


def _numbers(blocks: Sequence[BlockMark]) -> list[int]:
    numbers = [block.number for block in blocks]
    if numbers != sorted(set(numbers)):
        raise BadInput("blocks must be unique and in ascending order", where="blocks")
    return numbers


def _fit(table: HotTable, rows: pa.Table, numbers: list[int]) -> pa.Table:
    if table.number_column is None:
        raise BadInput("this table is not written block by block", where=table.name)
    if set(rows.column_names) != set(table.schema.names):
        odd = sorted(set(rows.column_names) ^ set(table.schema.names))
        raise BadInput(f"rows and table differ in columns: {', '.join(odd)}", where=table.name)
    try:
        fitted = rows.select(table.schema.names).cast(table.schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        raise BadInput(f"rows do not fit the table: {error}", where=table.name) from None
    present = pc.unique(fitted[table.number_column]).to_pylist()
    stray = sorted(set(present) - set(numbers), key=str)
    if stray:
        raise BadInput(f"rows of block {stray[0]}, which is not among the blocks written", where=table.name)
    return fitted


def _lock(connection: psycopg.Connection[Any], versions: list[UUID]) -> dict[UUID, Extent]:
    rows = connection.execute(statements("hot")["lock_tables"], {"versions": versions}).fetchall()
    missing = sorted(set(versions) - {version for version, *_ in rows})
    if missing:
        raise NotFound("there is no hot table for this generation", where=str(missing[0]), hint="call ensure() first")
    return {version: Extent(written_to, gone_from) for version, written_to, gone_from in rows}


def _forget(
    connection: psycopg.Connection[Any], tables: Mapping[HotTable, Any], numbers: list[int], replace_from: int | None
) -> None:
    versions = [table.dataset_version for table in tables]
    if replace_from is not None:
        values: dict[str, Any] = {"versions": versions, "first": replace_from}
        connection.execute(statements("hot")["unmark_from"], values)
        condition = sql.SQL("{} >= %(first)s")
    else:
        values = {"versions": versions, "numbers": numbers}
        connection.execute(statements("hot")["unmark_numbers"], values)
        condition = sql.SQL("{} = ANY(%(numbers)s)")
    for table in tables:
        where = condition.format(sql.Identifier(str(table.number_column)))
        connection.execute(sql.SQL("DELETE FROM {} WHERE {}").format(table.identifier, where), values)


def _mark(connection: psycopg.Connection[Any], versions: list[UUID], blocks: Sequence[BlockMark]) -> None:
    if not blocks:
        return
    values = {
        "versions": versions,
        "numbers": [block.number for block in blocks],
        "hashes": [block.hash for block in blocks],
        "parents": [block.parent_hash for block in blocks],
    }
    connection.execute(statements("hot")["mark"], values)
    ends = {"versions": versions, "first": blocks[0].number, "last": blocks[-1].number}
    torn = connection.execute(statements("hot")["torn"], ends).fetchone()
    if torn is not None:
        raise Conflict(
            f"the parent of block {torn[1]} is not the block before it",
            where=f"block {torn[1]}",
            hint="find the fork, and replace everything from it on",
        )


def _set_extents(connection: psycopg.Connection[Any], extents: Mapping[UUID, Extent]) -> None:
    values = {
        "versions": list(extents),
        "written_to": [extent.written_to for extent in extents.values()],
        "gone_from": [extent.gone_from for extent in extents.values()],
    }
    connection.execute(statements("hot")["set_extents"], values)
