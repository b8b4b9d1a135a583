"""Queries of a chain system, answered in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.systems.chain import ChainSystem
from tests.support.systems.query import SharedSpark
from tracelake.query.answer import QueryAnswerer
from tracelake.query.audit import Audit
from tracelake.query.encode import rows_of
from tracelake.query.resolve import Resolver
from tracelake.query.spark_engine import SparkEngine
from tracelake.settings import QuerySettings
from tracelake.wire.query_messages import QueryRequest


def query_answerer(system: ChainSystem, folder: Path) -> QueryAnswerer:
    settings = QuerySettings(timeout_seconds=900)
    engine = SparkEngine(SharedSpark(system.spark), system.walk.control.objects, system.data_dsn, settings)
    return QueryAnswerer(
        Resolver(system.walk.dispatcher), engine, Audit(folder / "audit", system.walk.dispatcher), settings
    )


async def run_query(answerer: QueryAnswerer, sql: str) -> list[list[Any]]:
    _, table = await answerer.for_user("test|acme", QueryRequest(sql=sql))
    return rows_of(table)
