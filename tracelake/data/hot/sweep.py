"""Marks compacted blocks as cold, and deletes their rows after a grace period.

The order is: read a view of the range (`hot/view.py`), write Parquet, commit it, and only then call `mark_compacted`
with that view's `up_to_seq` and the number of the commit. A block rewritten in between has a higher seq and stays hot.
A compaction that ends before it marks leaves everything hot, which is correct and only takes space. Of two that read
one range at once only the first is committed: `dispatcher/tasks/completion/check_replacement.py` refuses the other.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
from psycopg import sql

from tracelake.data.hot.tables import HotTable
from tracelake.data.statements import statements
from tracelake.errors import BadInput


def mark_compacted(
    connection: psycopg.Connection[Any], table: HotTable, *, start: int, stop: int, up_to_seq: int, commit: int
) -> int:
    """Mark the blocks of [start, stop) that the compaction read as cold from this commit on; return how many."""
    values = {
        "version": table.dataset_version,
        "start": start,
        "stop": stop,
        "up_to_seq": up_to_seq,
        "commit": commit,
    }
    with connection.transaction():
        connection.execute(statements("hot")["lock_tables"], {"versions": [table.dataset_version]})
        marked = connection.execute(statements("hot")["mark_compacted"], values).fetchall()
    return sum(is_cold for (is_cold,) in marked)


def sweep(connection: psycopg.Connection[Any], table: HotTable, grace: timedelta) -> int:
    """Delete rows and marks of blocks that have been cold for longer than `grace`; return how many blocks.

    Choose a grace period longer than any reader stays pinned: a later reader is refused, and never misses rows
    silently.
    """
    if table.number_column is None:
        raise BadInput("this table is not written block by block", where=table.name)
    with connection.transaction():
        connection.execute(statements("hot")["lock_tables"], {"versions": [table.dataset_version]})
        values = {"version": table.dataset_version, "grace": grace}
        numbers = [number for (number,) in connection.execute(statements("hot")["sweep_marks"], values)]
        if numbers:
            _delete_rows(connection, table, numbers)
            connection.execute(statements("hot")["merge_swept"], values)
    return len(numbers)


def _delete_rows(connection: psycopg.Connection[Any], table: HotTable, numbers: list[int]) -> None:
    number = sql.Identifier(str(table.number_column))
    statement = sql.SQL("DELETE FROM {} WHERE {} = ANY(%s)").format(table.identifier, number)
    connection.execute(statement, (numbers,))
