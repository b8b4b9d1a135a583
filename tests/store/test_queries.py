"""Every named statement stands up on a migrated database, and says what it is for."""

from __future__ import annotations

import asyncio
import re

import asyncpg
import pytest

from trace_platform.store.queries import FOLDER, queries

ADMINISTRATIVE = {"describe", "first_start", "roles_data", "roles_queue", "roles_state"}
"""Run through psycopg by the owner, not prepared by the Dispatcher."""
FILES = sorted(path.stem for path in FOLDER.glob("*.sql") if path.stem not in ADMINISTRATIVE)


@pytest.mark.parametrize("file", FILES)
def test_every_statement_can_be_prepared(file: str, state_db: str) -> None:
    async def prepare_all() -> dict[str, str]:
        connection = await asyncpg.connect(state_db)
        wrong = {}
        try:
            for name, sql in queries(file).items():
                try:
                    await connection.prepare(sql)
                except asyncpg.PostgresError as refusal:
                    wrong[name] = str(refusal)
        finally:
            await connection.close()
        return wrong

    assert asyncio.run(prepare_all()) == {}


@pytest.mark.parametrize("file", FILES)
def test_every_statement_begins_with_a_sentence(file: str) -> None:
    for name, sql in queries(file).items():
        assert re.match(r"-- [A-Z].*[.:,]", sql), f"{file}.{name}"
