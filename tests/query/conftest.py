from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Literal
from uuid import uuid4

import pytest

from tests.query.house import House, a_house, furnished
from tests.spark_session import a_session
from trace_platform.lite.postgres import RunningServer
from trace_platform.store.migrate import Database

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMES: tuple[Literal["state"], Literal["queue"], Literal["data"]] = ("state", "queue", "data")


@pytest.fixture(scope="package")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="package")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with a_session(tmp_path_factory.mktemp("query-spark")) as session:
        yield session


@pytest.fixture(scope="package")
async def house(
    postgres: RunningServer,
    template: Callable[[Database], str],
    tmp_path_factory: pytest.TempPathFactory,
    spark: SparkSession,
) -> AsyncIterator[House]:
    """One for all tests of this folder: they only read, or make what is their own."""
    dsns = {name: postgres.create_database(f"{name}_{uuid4().hex[:12]}", template(name)) for name in NAMES}
    async with a_house(dsns, tmp_path_factory.mktemp("house"), spark) as bare, furnished(bare) as house:
        yield house
