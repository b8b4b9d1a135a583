"""Types are asked for once per process, and values are the same whether they were asked for or known."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from tracelake.runtime import postgres
from tracelake.store.db import open_pool

pytestmark = pytest.mark.anyio

ARRAYS = "SELECT $1::uuid[] AS ids, $2::jsonb[] AS objects, $3::bigint[] AS numbers, ARRAY['x', NULL] AS texts"
VALUES: tuple[Any, ...] = ([uuid.UUID(int=7)], [{"a": [1]}, None], [1, 2**62])


@asynccontextmanager
async def connected(dsn: str) -> AsyncIterator[tuple[Any, list[str]]]:
    """A new connection of a pool of the product, and what it sends."""
    sent: list[str] = []
    async with open_pool(dsn, name="test", max_size=1) as pool, pool.acquire() as made:
        made.add_query_logger(lambda logged: sent.append(logged.query))
        yield made, sent


async def test_a_new_connection_asks_for_no_type_that_the_process_knows(
    state_db: str, queue_db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "_KNOWN", {})
    answers = []
    async with AsyncExitStack() as both:
        for dsn, asks in ((state_db, True), (state_db, False), (queue_db, False)):
            made, sent = await both.enter_async_context(connected(dsn))
            answers += [dict(await made.fetchrow(ARRAYS, *VALUES)) for _ in range(2)]
            assert any("typeinfo_tree" in query for query in sent) is asks, sent
    assert answers == [dict(zip(("ids", "objects", "numbers", "texts"), (*VALUES, ["x", None]), strict=True))] * 6


async def test_a_process_asks_once_for_all_that_its_statements_use(
    state_db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "_KNOWN", {})
    async with connected(state_db) as (made, sent):
        for name in ("bool", "bytea", "int", "text", "bigint", "float8", "timestamptz", "interval", "uuid", "jsonb"):
            assert await made.fetchval(f"SELECT $1::{name}[]", []) == []
        assert len([query for query in sent if "typeinfo_tree" in query]) == 1, sent
        assert await made.fetchval("SELECT $1::date[]", []) == [], "any other is asked for when it is used"
        assert len([query for query in sent if "typeinfo_tree" in query]) == 2, sent


async def test_types_of_one_database_are_asked_for_in_each(state_db: str, queue_db: str) -> None:
    """The same object id may be an enum here and a range there."""
    for dsn, body, value in (
        (state_db, "ENUM ('one', 'two')", "one"),
        (queue_db, "(place int, name text)", (1, "x")),
    ):
        async with connected(dsn) as (made, sent):
            await made.execute(f"CREATE TYPE kind AS {body}")
            assert await made.fetchval("SELECT $1::kind", value) == value
            assert await made.fetchval("SELECT $1::kind[]", [value]) == [value]
            assert any("typeinfo_tree" in query for query in sent)
