"""A Dispatcher dies at each point of removing files of replaced partitions: the rest goes later, what counts stays."""

from __future__ import annotations

import pytest

from tests.support.dispatcher.control import control_for
from tests.support.dispatcher.job_chain import deploy_chain
from tests.support.dispatcher.staged_files import A_MONTH_PASSES, folder_of, names, written
from tests.support.faults.deaths import RETAINING, dies_at
from tests.support.systems.processes import System
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

NOTED = "SELECT count(*) FROM partition_versions WHERE files_removed_at IS NOT NULL"
MARKED_TOO_EARLY = """
SELECT count(*) FROM partition_versions WHERE files_removed_at IS NOT NULL AND valid_to IS NULL
"""


async def test_a_dispatcher_dies_while_it_removes_replaced_files_and_the_next_one_goes_on(system: System) -> None:
    async with control_for(system.state_dsn, system.queue_dsn, system.folder / "home") as control:
        chain = await deploy_chain(control)
        former = await written(control, chain, (0, 99), (100, 199))
        older = await written(control, chain, (0, 99))
        newest = await written(control, chain, (0, 99), (200, 299))
        await control.pool.execute(A_MONTH_PASSES)
        left = {"first_100_199.parquet", "_SUCCESS"}
        there = {
            "delete_replaced_files.before_remove": (
                left | {"first_0_99.parquet"},
                {"first_0_99.parquet", "_SUCCESS"},
                0,
            ),
            "delete_replaced_files.files_removed": (left, {"_SUCCESS"}, 0),
            "delete_replaced_files.before_mark": (left, set(), 0),
            "delete_replaced_files.after_mark": (left, set(), 2),
        }
        assert sorted(there) == sorted(RETAINING)
        for point, expected in there.items():
            await dies_at(system.dispatcher(point=point), point)
            seen = (names(control, folder_of(former)), names(control, folder_of(older)), await noted(system))
            assert seen == expected, point
            assert names(control, folder_of(newest)) == {"first_0_99.parquet", "first_200_299.parquet", "_SUCCESS"}
        again = await written(control, chain, (100, 199))
        await control.pool.execute(A_MONTH_PASSES)
        system.dispatcher()

        async def reached() -> bool:
            return await noted(system) >= 3

        await until(reached, "three partitions are marked as replaced")
        assert names(control, folder_of(former)) == set(), "with the last of its files the marker goes"
        assert names(control, folder_of(again)) == {"first_100_199.parquet", "_SUCCESS"}
        assert await system.pool.fetchval(MARKED_TOO_EARLY) == 0


async def noted(system: System) -> int:
    return int(await system.pool.fetchval(NOTED))
