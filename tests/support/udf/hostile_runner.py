"""A runner with tight bounds and a secret in its environment, for hostile code."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from tests.support.operators import registered
from tests.support.postgres import RunningServer
from tests.support.systems.runner import HANDS, RunnerSystem, running_system
from tracelake.sandbox.bubblewrap import Isolation
from tracelake.store.migrate import Database

SECRET = "a secret of the runner"
BOUNDS: dict[str, Any] = {
    "memory_mb": 192,
    "tmp_mb": 8,
    "tmp_files": 2_000,
    "put_mb": 4,
    "put_objects": 16,
    "processes": 32,
    "open_files": 128,
}
NAMES: tuple[Database, ...] = ("state", "queue")


@asynccontextmanager
async def runner_system(
    postgres: RunningServer, template: Callable[[Database], str], folder: Path, isolation: Isolation | None
) -> AsyncIterator[RunnerSystem]:
    dsns: dict[str, str] = {
        name: postgres.create_database(f"{name}_{uuid4().hex[:12]}", template(name)) for name in NAMES
    }
    os.environ["TRACE_TEST_SECRET"] = SECRET
    try:
        with registered(hands=HANDS):
            async with running_system(dsns, folder, isolation, **BOUNDS) as made:
                yield made
    finally:
        os.environ.pop("TRACE_TEST_SECRET", None)


async def works(system: RunnerSystem) -> None:
    """The runner still serves."""
    answer = await system.run(system.python(f"def handler(event, context): return 'well'  # {uuid4()}\n"))
    assert answer.body == "well", answer
