"""The shared Spark session, and a fresh system for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.dispatcher.control import PULL
from tests.support.operators import registered
from tests.support.spark.session import shared_session
from tests.support.systems.sink import SinkSystem, sink_system

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def spark() -> SparkSession:
    return shared_session()


@pytest.fixture
async def system(
    state_db: str, queue_db: str, data_db: str, tmp_path: Path, spark: SparkSession
) -> AsyncIterator[SinkSystem]:
    with registered(pull=PULL):
        async with sink_system(state_db, queue_db, data_db, tmp_path, spark) as made:
            yield made
