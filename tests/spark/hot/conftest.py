"""Fixtures of hot tables."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from tests.support.spark.hot_rows import Connection


@pytest.fixture
def data(data_db: str) -> Iterator[Connection]:
    with psycopg.connect(data_db, autocommit=True) as connection:
        yield connection
