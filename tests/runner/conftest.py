"""One Dispatcher and one runner for all tests of this folder: each makes its own bundles and tasks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from uuid import uuid4

import pytest

from tests.support.operators import registered
from tests.support.postgres import RunningServer
from tests.support.systems.runner import HANDS, RunnerSystem, running_system
from tracelake.store.migrate import Database


@pytest.fixture(scope="package")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="package")
def dsns(postgres: RunningServer, template: Callable[[Database], str]) -> dict[str, str]:
    return create_databases(postgres, template, ("state", "queue"))


@pytest.fixture(scope="module")
def udf_dsns(postgres: RunningServer, template: Callable[[Database], str]) -> dict[str, str]:
    return create_databases(postgres, template, ("state", "queue", "data"))


def create_databases(
    postgres: RunningServer, template: Callable[[Database], str], names: tuple[Database, ...]
) -> dict[str, str]:
    return {name: postgres.create_database(f"{name}_{uuid4().hex[:12]}", template(name)) for name in names}


@pytest.fixture(scope="package")
async def system(dsns: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunnerSystem]:
    with registered(hands=HANDS):
        async with running_system(dsns, tmp_path_factory.mktemp("udf"), memory_mb=256, tmp_mb=16, processes=40) as made:
            yield made
