from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.operators.rig import Numbers, Rig, operator, rigged
from tests.spark_session import a_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="package")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with a_session(tmp_path_factory.mktemp("operators")) as session:
        yield session


@pytest.fixture
async def rig(state_db: str, queue_db: str, tmp_path: Path, spark: SparkSession) -> AsyncIterator[Rig]:
    async with rigged(state_db, queue_db, tmp_path, spark) as made:
        yield made


@pytest.fixture
def numbers() -> Iterator[Numbers]:
    """The operator `numbers`; what it writes as `value` can be changed."""
    made = Numbers()
    with operator("numbers", made):
        yield made
