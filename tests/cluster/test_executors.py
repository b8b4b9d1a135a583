"""Executors of a real standalone cluster come and go under a task, and take the rows that they had shuffled with them.

About 40 s on two free cores: a master, Spark workers and `trace worker` are processes of their own.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.spark.cluster import SparkCluster, executors_of, family_of, kill, trace_worker
from tests.support.spark.held_rows import COMPLETED, ENDED, every_row_once, let_go, until_held_below, with_numbers
from tests.support.systems.walk import walking
from tests.support.waiting import until

pytestmark = pytest.mark.anyio


@pytest.mark.timeout(1200)
async def test_executors_lost_and_added_and_shuffled_rows_lost_under_a_task_cost_no_attempt_and_no_row(
    cluster: SparkCluster, state_db: str, queue_db: str, data_db: str, tmp_path: Path
) -> None:
    master = cluster.master()
    first = cluster.worker(master)
    async with walking(state_db, queue_db, tmp_path) as walk:
        system = await with_numbers(walk, tmp_path)
        settings = {**cluster.settings(master), "TRACE_SPARK__EXECUTOR_MEMORY": "512m"}
        async with trace_worker(walk, tmp_path, (queue_db, data_db), settings):
            await system.trigger("load", "go")
            await system.settled()
            await system.trigger("hold", "go")
            await until_held_below(system, [first])
            second = cluster.worker(master)
            await until_held_below(system, [second])
            (executor,) = executors_of(first)
            kill(family_of(executor.pid))
            (replacement,) = await until(lambda: executors_of(first), "the Spark worker has started another executor")
            assert replacement.pid != executor.pid
            await until_held_below(system, [replacement.pid, second])
            lost = cluster.shuffle_files()
            assert lost
            for file in lost:
                file.unlink()
            let_go(system)
            await system.until(ENDED, 1)
            again = cluster.shuffle_files()
        await every_row_once(system, [COMPLETED])
    assert {shuffle_of(file) for file in lost} & {shuffle_of(file) for file in again}, "the same shuffle was done again"
    assert not {file.name for file in lost} & {file.name for file in again}, "by other tasks of Spark"


@pytest.mark.timeout(1200)
async def test_executors_come_with_the_work_and_go_when_there_is_none(
    cluster: SparkCluster, state_db: str, queue_db: str, data_db: str, tmp_path: Path
) -> None:
    master = cluster.master()
    machines = [cluster.worker(master), cluster.worker(master)]

    def executors() -> int:
        return sum(len(executors_of(machine)) for machine in machines)

    async with walking(state_db, queue_db, tmp_path) as walk:
        system = await with_numbers(walk, tmp_path)
        settings = {
            **cluster.settings(master),
            "TRACE_SPARK__EXECUTOR_MEMORY": "512m",
            "TRACE_SPARK__EXECUTOR_CORES": "1",
            "TRACE_SPARK__MAX_EXECUTORS": "2",
            "TRACE_SPARK__EXECUTOR_IDLE_SECONDS": "3",
        }
        async with trace_worker(walk, tmp_path, (queue_db, data_db), settings):
            await system.trigger("load", "go")
            await system.settled()
            await until(lambda: executors() == 0, "no executor is left of a worker without work", every=0.5)
            await system.trigger("hold", "go")
            await until_held_below(system, machines)
            assert executors() == 2
            let_go(system)
            await system.until(ENDED, 1)
            await until(lambda: executors() == 0, "none is left after the work, though it had shuffled rows", every=0.5)
        await every_row_once(system, [COMPLETED])


def shuffle_of(file: Path) -> str:
    return file.name.split("_")[1]
