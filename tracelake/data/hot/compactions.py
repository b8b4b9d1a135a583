"""Running compactions, recorded before their Parquet is written, so that another process can finish them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg

from tracelake.data.hot.tables import HotTable
from tracelake.data.statements import statements
from tracelake.domain.ranges import Range
from tracelake.errors import Conflict


@dataclass(frozen=True)
class Begun:
    location: str
    start: int
    stop: int
    up_to_seq: int


def claim(connection: psycopg.Connection[Any], table: HotTable, dataset: UUID) -> None:
    """A table is compacted into one dataset only: marks refer to commits by number, and numbers belong to a dataset."""
    values = {"version": table.dataset_version, "dataset": dataset}
    row = connection.execute(statements("compactions")["claim"], values).fetchone()
    if row is not None and row[0] != dataset:
        raise Conflict(
            f"this hot table is compacted into another dataset, {row[0]}",
            where=table.name,
            hint="one compaction for each hot table, whose job keeps its name and output",
        )


def begin(connection: psycopg.Connection[Any], table: HotTable, location: str, span: Range, up_to_seq: int) -> None:
    values = {
        "version": table.dataset_version,
        "location": location,
        "start": span.start,
        "stop": span.stop,
        "up_to_seq": up_to_seq,
    }
    connection.execute(statements("compactions")["begin"], values)


def begun(connection: psycopg.Connection[Any], table: HotTable) -> list[Begun]:
    rows = connection.execute(statements("compactions")["begun"], {"version": table.dataset_version}).fetchall()
    return [Begun(*row) for row in rows]


def end(connection: psycopg.Connection[Any], table: HotTable, begun: Begun) -> None:
    values = {"version": table.dataset_version, "location": begun.location, "start": begun.start}
    connection.execute(statements("compactions")["end"], values)


def delete_old(connection: psycopg.Connection[Any], table: HotTable) -> None:
    """Deletes those that lost: no attempt takes that long."""
    connection.execute(statements("compactions")["delete_old"], {"version": table.dataset_version})
