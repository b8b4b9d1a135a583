from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.spark.session import shared_session
from tests.support.systems.operators import Numbers, OperatorSystem, operator, operator_system
from tracelake.lite.seaweedfs import SeaweedFS
from tracelake.wiring import s3_objects

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="package")
def spark() -> SparkSession:
    return shared_session()


@pytest.fixture
async def system(state_db: str, queue_db: str, tmp_path: Path, spark: SparkSession) -> AsyncIterator[OperatorSystem]:
    """In a folder whose name Spark must get unchanged."""
    folder = tmp_path / "Jörg's files"
    folder.mkdir()
    async with operator_system(state_db, queue_db, folder, spark) as made:
        yield made


@pytest.fixture
async def s3_system(
    state_db: str, queue_db: str, tmp_path: Path, spark: SparkSession, seaweedfs: SeaweedFS
) -> AsyncIterator[OperatorSystem]:
    """The same, with files on a real S3 server."""
    objects = s3_objects(seaweedfs.objects_for("worker"))
    async with operator_system(state_db, queue_db, tmp_path, spark, objects) as made:
        yield made


@pytest.fixture
def numbers() -> Iterator[Numbers]:
    """The operator `numbers`; its `value` can be changed."""
    made = Numbers()
    with operator("numbers", made):
        yield made
