from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Literal
from uuid import uuid4

import pytest

from tests.query.house import House, a_house, furnished
from tests.spark_session import QUICK, end_shared
from tests.support.postgres import RunningServer
from tracelake.query.spark import BATCH_BYTES
from tracelake.spark.configuration import SparkOptions
from tracelake.spark.java import find_java
from tracelake.spark.session import start_session, stop_session
from tracelake.store.migrate import Database

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMES: tuple[Literal["state"], Literal["queue"], Literal["data"]] = ("state", "queue", "data")
MEGABYTES = 8
"""What an answer may hold here: the session's own limit and the service's are one setting in a real process."""


@pytest.fixture(scope="package")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="package")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    end_shared()
    folder = tmp_path_factory.mktemp("query-spark")
    conf = {
        **QUICK,
        "spark.driver.maxResultSize": f"{MEGABYTES}m",
        "spark.sql.execution.arrow.maxBytesPerBatch": str(BATCH_BYTES),
    }
    options = SparkOptions(local_dir=folder / "spark", master="local[2]", driver_memory="768m", conf=conf)
    session = start_session(options, find_java(os.environ, folder / "cache"), os.environ)
    try:
        yield session
    finally:
        stop_session(session)


@pytest.fixture(scope="package")
async def house(
    postgres: RunningServer,
    template: Callable[[Database], str],
    tmp_path_factory: pytest.TempPathFactory,
    spark: SparkSession,
) -> AsyncIterator[House]:
    """One for all tests of this folder: they only read, or make what is their own."""
    dsns: dict[str, str] = {
        name: postgres.create_database(f"{name}_{uuid4().hex[:12]}", template(name)) for name in NAMES
    }
    # No test here needs its Spark ended, and load must not make it so.
    limits = {"max_bytes": MEGABYTES * 1024 * 1024, "concurrency": 3, "stuck_seconds": 120.0}
    folder = tmp_path_factory.mktemp("house") / "Jörg's house"  # as it is, it must be told to Spark
    folder.mkdir()
    async with a_house(dsns, folder, spark, **limits) as bare, furnished(bare) as house:
        yield house
