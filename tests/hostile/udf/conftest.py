"""Two runners with tight bounds, shared by the tests of hostile code."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from tests.support.postgres import RunningServer
from tests.support.systems.runner import RunnerSystem
from tests.support.udf.hostile_runner import runner_system
from tracelake.sandbox.bubblewrap import Isolation, bwraps
from tracelake.store.migrate import Database


@pytest.fixture(scope="package")
async def system(
    postgres: RunningServer, template: Callable[[Database], str], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[RunnerSystem]:
    async with runner_system(postgres, template, tmp_path_factory.mktemp("hostile"), None) as made:
        yield made


@pytest.fixture(scope="package")
async def anybodys(
    postgres: RunningServer, template: Callable[[Database], str], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[RunnerSystem]:
    """Isolation as any user can build it. If we are root, it is weaker here than in truth: uid 0 stands behind it."""
    async with runner_system(postgres, template, tmp_path_factory.mktemp("any_user"), Isolation(bwraps()[0])) as made:
        yield made


@pytest.fixture(params=["system", "anybodys"])
def either(request: pytest.FixtureRequest) -> RunnerSystem:
    found: RunnerSystem = request.getfixturevalue(request.param)
    return found
