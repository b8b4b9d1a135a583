"""What the tests of the Query service share, and none of them may change."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import psycopg

from tests.support.systems.query import ROWS

FIND = Path(__file__).with_suffix(".sql").read_text(encoding="utf-8")


class Shared(NamedTuple):
    """A dataset of one of the organisations, as it is served."""

    org: str
    job: str
    storage: str
    rows: int | None
    """None: tests add rows to it."""


SHARED = {
    Shared("acme", "make", "parquet", ROWS),
    Shared("acme", "hide", "parquet", ROWS),
    Shared("acme", "feed", "parquet", None),
    Shared("acme", "keep", "parquet", ROWS),
    Shared("acme", "think", "parquet", None),
    Shared("rival", "make", "parquet", 5),
    Shared("rival", "hide", "parquet", 0),
    Shared("rival", "feed", "parquet", None),
    Shared("rival", "keep", "parquet", 0),
    Shared("rival", "think", "parquet", None),
}


def shared_data(state: str) -> set[Shared]:
    """Of DAG `shop` as it is in this database. 2 ms."""
    with psycopg.connect(state) as connection:
        return {Shared(*row) for row in connection.execute(FIND)}
