from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.spark.cluster import ConnectServer, SparkCluster, spark_cluster


@pytest.fixture(scope="package")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    """One Connect server for all tests that need one; who kills it starts it again."""
    with spark_cluster(tmp_path_factory.mktemp("connect") / "cluster") as made:
        yield ConnectServer(made, made.connect_server())


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SparkCluster]:
    with spark_cluster(tmp_path / "cluster") as made:
        yield made
