from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.spark.cluster import Elsewhere, elsewhere


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Elsewhere]:
    with elsewhere(tmp_path / "cluster") as made:
        yield made
