"""A Dispatcher dies at each point of removing a generation: it is there whole or not at all; the rest goes later."""

from __future__ import annotations

import pytest

from tests.support.dispatcher.control import control_for
from tests.support.dispatcher.job_chain import deploy_chain
from tests.support.dispatcher.staged_files import EIGHT_DAYS_PASS, folder_of, leave, names, written
from tests.support.faults.deaths import LEFT, dies_at
from tests.support.systems.processes import System

pytestmark = pytest.mark.anyio

STATE = """
SELECT (SELECT count(*) FROM partition_versions), (SELECT count(*) FROM removed_generations),
       (SELECT count(*) FROM removed_generations WHERE files_deleted_at IS NOT NULL)
"""


async def test_a_dispatcher_dies_while_it_removes_a_generation_and_the_next_one_goes_on(system: System) -> None:
    async with control_for(system.state_dsn, system.queue_dsn, system.folder / "home") as control:
        chain = await deploy_chain(control)
        task = await written(control, chain, (0, 99), (100, 199))
        await leave(control, chain)
        await control.pool.execute(EIGHT_DAYS_PASS)
        files = names(control, folder_of(task))
        there = {
            "remove_left_generations.before_commit": ((2, 0, 0), files),
            "remove_left_generations.after_commit": ((0, 1, 0), files),
            "remove_left_generations.before_mark": ((0, 1, 0), set()),
            "remove_left_generations.after_mark": ((0, 1, 1), set()),
        }
        assert sorted(there) == sorted(LEFT)
        for point, expected in there.items():
            await dies_at(system.dispatcher(point=point), point)
            row = await control.pool.fetchrow(STATE)
            assert (tuple(row or ()), names(control, folder_of(task))) == expected, point
