"""Queries of a chain system, answered in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.support.identity.service_tokens import proven_user
from tests.support.systems.chain import ChainSystem
from tests.support.systems.query import SharedSpark
from tracelake.query.answer import QueryAnswerer
from tracelake.query.audit import Audit
from tracelake.query.choose_engine import ChosenEngine
from tracelake.query.encode import rows_of
from tracelake.query.resolve import Resolver
from tracelake.query.sail.engine import SailEngine
from tracelake.query.spark.engine import SparkEngine
from tracelake.runtime.metrics import Metrics
from tracelake.settings import QuerySettings
from tracelake.wire.internal.queries import QueryRequest


def query_answerer(system: ChainSystem, folder: Path) -> QueryAnswerer:
    settings = QuerySettings(timeout_seconds=900)
    engine = SparkEngine(SharedSpark(system.spark), system.walk.control.objects, system.data_dsn, settings)
    return QueryAnswerer(
        Resolver(system.walk.dispatcher), engine, Audit(folder / "audit", system.walk.dispatcher), settings
    )


@asynccontextmanager
async def with_sail(answerer: QueryAnswerer, system: ChainSystem, folder: Path) -> AsyncIterator[QueryAnswerer]:
    """The same, with Sail for queries that it runs."""
    sail = SailEngine(folder / "sail", system.walk.control.objects, system.data_dsn, answerer.settings, Metrics())
    try:
        yield replace(answerer, engine=ChosenEngine(answerer.engine, sail, answerer.settings, Metrics()))
    finally:
        await sail.close()


async def run_query(answerer: QueryAnswerer, sql: str) -> list[list[Any]]:
    _, table = await answerer.for_user(proven_user("test|acme"), QueryRequest(sql=sql))
    return rows_of(table)
