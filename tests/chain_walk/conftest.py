"""Chain operators as they really run: a dev chain, a Dispatcher, a worker with Spark, real databases."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.chain.devchain import Devchain, running
from tests.support.spark.session import shared_session
from tests.support.systems.chain import ChainSystem
from tests.support.systems.walk import walking
from tracelake.lite.seaweedfs import SeaweedFS
from tracelake.store.migrate import Database
from tracelake.wiring import s3_objects


@pytest.fixture(scope="package")
def spark() -> object:
    return shared_session()


@pytest.fixture
def devchain() -> Iterator[Devchain]:
    with running(blocks=60, finality=16) as chain:
        yield chain


@pytest.fixture
async def bare_system(
    clone: Callable[[Database], str], tmp_path: Path, devchain: Devchain
) -> AsyncIterator[ChainSystem]:
    """Whose workers have no Spark."""
    queue = clone("queue")
    async with walking(clone("state"), queue, tmp_path, beat_seconds=0.25) as walk:
        yield ChainSystem(walk, clone("data"), None, devchain, queue, tmp_path)


@pytest.fixture
async def system(bare_system: ChainSystem, spark: object) -> ChainSystem:
    return replace(bare_system, spark=spark)


@pytest.fixture
async def s3_system(
    clone: Callable[[Database], str], tmp_path: Path, devchain: Devchain, spark: object, seaweedfs: SeaweedFS
) -> AsyncIterator[ChainSystem]:
    """Whose files lie on a real S3 server."""
    queue, objects = clone("queue"), s3_objects(seaweedfs.objects_for("worker"))
    async with walking(clone("state"), queue, tmp_path, beat_seconds=0.25, objects=objects) as walk:
        yield ChainSystem(walk, clone("data"), spark, devchain, queue, tmp_path)
