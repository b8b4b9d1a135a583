from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.spark.cluster import SparkCluster, spark_cluster


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SparkCluster]:
    with spark_cluster(tmp_path / "cluster") as made:
        yield made
