from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Literal
from uuid import uuid4

import pytest

from tests.support.postgres import RunningServer
from tests.support.query.shared_data import SHARED, shared_data
from tests.support.spark.session import QUICK, a_session
from tests.support.systems.query import MEGABYTES, QuerySystem, another_service, started_system, with_rows
from tracelake.query.spark.jvm import BATCH_BYTES
from tracelake.store.migrate import Database

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMES: tuple[Literal["state"], Literal["queue"], Literal["data"]] = ("state", "queue", "data")


@pytest.fixture(scope="package")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="package")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    conf = {
        **QUICK,
        "spark.driver.maxResultSize": f"{MEGABYTES}m",
        "spark.sql.execution.arrow.maxBytesPerBatch": str(BATCH_BYTES),
    }
    with a_session(tmp_path_factory.mktemp("query-spark"), conf=conf) as session:
        yield session


@pytest.fixture(scope="package")
def dsns(postgres: RunningServer, template: Callable[[Database], str]) -> dict[str, str]:
    """The databases of `system`."""
    return {name: postgres.create_database(f"{name}_{uuid4().hex[:12]}", template(name)) for name in NAMES}


@pytest.fixture(autouse=True)
def _what_all_read_is_unchanged(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests come in any order: each that uses `system` leaves its datasets as the next one expects them."""
    if "dsns" not in request.fixturenames:
        yield
        return
    state = request.getfixturevalue("dsns")["state"]
    before = shared_data(state) or SHARED  # the first one starts the system
    yield
    assert shared_data(state) == before, "this test has changed what the others read"


@pytest.fixture(scope="package")
async def system(
    dsns: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
    spark: SparkSession,
) -> AsyncIterator[QuerySystem]:
    """One for all tests of this folder, with Spark alone: they only read, or `add` rows to other datasets than these.

    Those are `orders`, `hide` and `pay`; see `tests/support/query/shared_data.py`.
    """
    # No test here needs to end Spark, and a loaded machine must not cause it.
    limits = {"max_bytes": MEGABYTES * 1024 * 1024, "concurrency": 3, "stuck_seconds": 120.0, "engine": "spark"}
    folder = tmp_path_factory.mktemp("system") / "Jörg's folder"  # Spark must get it unchanged
    folder.mkdir()
    async with started_system(dsns, folder, spark, **limits) as bare, with_rows(bare) as system:
        yield system


@pytest.fixture(scope="package")
async def auto_system(system: QuerySystem) -> AsyncIterator[QuerySystem]:
    """A service over the same rows with both engines."""
    async with another_service(system, engine="auto") as other:
        yield other


@pytest.fixture(params=["spark", "auto"])
def either(request: pytest.FixtureRequest, system: QuerySystem) -> QuerySystem:
    """Both services in turn: for tests of what holds whichever engine runs a query."""
    if request.param == "spark":
        return system
    found: QuerySystem = request.getfixturevalue("auto_system")
    return found
