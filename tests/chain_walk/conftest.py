"""Chain operators as they really run: a dev chain, a Dispatcher, a worker with Spark, real databases."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from tests.chain_walk.rig import Rig
from tests.walk.walking import walking
from trace_platform.chain.devchain.handle import Devchain, running
from trace_platform.spark.configuration import SparkOptions
from trace_platform.spark.java import find_java
from trace_platform.spark.session import start_session, stop_session
from trace_platform.store.migrate import Database


@pytest.fixture(scope="package")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    folder = tmp_path_factory.mktemp("spark")
    session = start_session(
        SparkOptions(folder / "local", shuffle_partitions=2, driver_memory="1g"),
        find_java(os.environ, folder / "cache"),
        os.environ,
    )
    yield session
    stop_session(session)


@pytest.fixture
def devchain() -> Iterator[Devchain]:
    with running(blocks=60, finality=16) as chain:
        yield chain


@pytest.fixture
async def rig(
    clone: Callable[[Database], str], tmp_path: Path, spark: object, devchain: Devchain
) -> AsyncIterator[Rig]:
    async with walking(clone("state"), clone("queue"), tmp_path) as walk:
        yield Rig(walk, clone("data"), spark, devchain)
