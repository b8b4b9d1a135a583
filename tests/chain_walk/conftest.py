"""Chain operators as they really run: a dev chain, a Dispatcher, a worker with Spark, real databases."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.chain_walk.rig import Rig
from tests.spark_session import shared_session
from tests.support.devchain import Devchain, running
from tests.walk.walking import walking
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
async def bare_rig(clone: Callable[[Database], str], tmp_path: Path, devchain: Devchain) -> AsyncIterator[Rig]:
    """Whose workers have no Spark."""
    queue = clone("queue")
    async with walking(clone("state"), queue, tmp_path, beat_seconds=0.25) as walk:
        yield Rig(walk, clone("data"), None, devchain, queue, tmp_path)


@pytest.fixture
async def rig(bare_rig: Rig, spark: object) -> Rig:
    return replace(bare_rig, spark=spark)


@pytest.fixture
async def s3_rig(
    clone: Callable[[Database], str], tmp_path: Path, devchain: Devchain, spark: object, seaweedfs: SeaweedFS
) -> AsyncIterator[Rig]:
    """Whose files lie on a real S3 server."""
    queue, objects = clone("queue"), s3_objects(seaweedfs.objects_for("worker"))
    async with walking(clone("state"), queue, tmp_path, beat_seconds=0.25, objects=objects) as walk:
        yield Rig(walk, clone("data"), spark, devchain, queue, tmp_path)
