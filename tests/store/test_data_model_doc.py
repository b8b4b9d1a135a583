"""`docs/reference/data_model.md` is what a freshly migrated database looks like."""

from __future__ import annotations

import psycopg
import pytest

from tests.support import ROOT
from tracelake.store import describe as module
from tracelake.store.describe import describe
from tracelake.store.queries import queries

PAGE = ROOT / "docs" / "reference" / "data_model.md"


def test_the_page_and_a_migrated_database_agree(state_db: str, data_db: str, queue_db: str) -> None:
    is_so = describe(state_db, data_db, queue_db)
    written = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    assert written == is_so, "docs/reference/data_model.md does not show the migrated databases: run `make docs`"


def test_every_table_says_what_it_is_for(state_db: str, data_db: str, queue_db: str) -> None:
    for dsn in (state_db, data_db, queue_db):
        with psycopg.connect(dsn) as connection:
            rows = connection.execute(queries("describe")["tables"].encode()).fetchall()
        assert rows
        assert [name for name, purpose, _ in rows if not purpose or not purpose.endswith(".")] == []


def test_the_page_can_be_written_by_the_command(
    state_db: str, data_db: str, queue_db: str, capsys: pytest.CaptureFixture[str]
) -> None:
    module.main([state_db, data_db, queue_db])
    assert capsys.readouterr().out == describe(state_db, data_db, queue_db)


def test_the_page_does_not_depend_on_the_rows_in_the_tables(state_db: str, data_db: str, queue_db: str) -> None:
    """Names are shown by search path: a second look, with rows in the tables, must be the same."""
    first = describe(state_db, data_db, queue_db)
    with psycopg.connect(state_db) as connection:
        connection.execute("INSERT INTO orgs (name, slug) VALUES ('x', 'x')")
        connection.execute("ANALYZE")
    assert describe(state_db, data_db, queue_db) == first
    assert "trace_migrations." not in first
