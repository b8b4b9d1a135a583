"""The line to Postgres is cut at COMMIT, before or after the server did it: callers repeat, and it counts once."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import pytest

from tests.support.faults.history_checker import assert_kept
from tests.support.faults.postgres_proxy import STATEMENTS, When, cutting
from tests.support.faults.traffic import Traffic, flowing
from tests.support.systems.caller import calling
from tests.support.systems.processes import System
from tests.support.waiting import SECONDS
from tracelake.store.queries import queries

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_line_cut_at_commit_loses_and_doubles_nothing(system: System, when: When) -> None:
    with tempfile.TemporaryDirectory(prefix="trace-cut-") as folder:  # a socket's path must be short
        async with cutting(system.state_dsn, Path(folder)) as (proxy, dsn), calling(system) as caller:
            traffic = Traffic(system, caller)
            dispatcher = system.dispatcher(state_dsn=dsn)
            await traffic.deploy()
            system.worker()
            async with flowing(traffic):
                for name, (file, statement) in STATEMENTS.items():
                    proxy.aim(queries(file)[statement], when)
                    try:
                        await asyncio.wait_for(proxy.cut.wait(), SECONDS)
                    except TimeoutError:
                        pytest.fail(f"the COMMIT of {name} never came")
            assert dispatcher.alive(), dispatcher.said()
    await assert_kept(system.pool, system.queue_pool, traffic.accepted)
