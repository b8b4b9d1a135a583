"""Of many jobs that wait for cores, those of the oldest task run first, whatever the numbers of their stages. 10 s."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.spark.session import a_session
from tests.support.waiting import wait_until
from tracelake.spark.tags import tagged

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

CORES = 2
TASKS = 10


def test_the_oldest_task_of_a_backlog_runs_first_though_its_stage_sorts_last(tmp_path: Path) -> None:
    with a_session(tmp_path, threads=CORES) as spark:  # one whose stages are counted from 0
        found, pools = backlog(spark, tmp_path)
    numbers = [int(stage) for _, stage in found]
    assert sorted(numbers) != sorted(numbers, key=str), "their names sort otherwise than their numbers"
    assert first_come(found), found
    assert pools == ["default"], "a pool is gone with its task"


def backlog(spark: SparkSession, folder: Path) -> tuple[list[list[str]], list[str]]:
    """Start jobs one after the other while all cores are busy; return the order in which they ran, and the pools
    left.
    """
    scheduler: Any = spark.sparkContext._jsc.sc()
    ran, held, go_on = folder / "ran", folder / "held", folder / "go on"
    with ThreadPoolExecutor(CORES + TASKS) as threads:
        hold = [threads.submit(job, spark, f"hold-{n}", held, go_on) for n in range(CORES)]
        wait_until(lambda: lines(held) == CORES, "every core is busy")
        waiting = []
        for number in range(TASKS):
            waiting.append(threads.submit(job, spark, f"task-{number}", ran))
            wait_until(partial(waits, scheduler, number + 1), "the job waits for a core")
        go_on.touch()
        for item in (*hold, *waiting):
            item.result()
    found = sorted((line.split() for line in ran.read_text().splitlines()), key=partial(launched, scheduler))
    return found, [pool.name() for pool in items_of(scheduler.getAllPools())]


def launched(scheduler: Any, ran: list[str]) -> int:
    """When Spark gave the job's task a core; its Python may start later, and later than that of the next."""
    (task,) = items_of(scheduler.statusStore().taskList(int(ran[1]), 0, CORES))
    return int(task.launchTime().getTime())


def first_come(found: list[list[str]]) -> bool:
    """In order; two at a time, so neighbours may be swapped."""
    order = [int(tag.removeprefix("task-")) for tag, _ in found]
    return all(abs(place - number) < CORES for place, number in enumerate(order))


def job(spark: SparkSession, tag: str, marker: Path, until_there: Path | None = None) -> None:
    """Run one Spark task, which notes that it runs."""

    def say(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        task = TaskContext.get()
        with marker.open("a") as file:
            file.write(f"{tag} {task.stageId() if task else -1}\n")
        while until_there is not None and not until_there.exists():
            time.sleep(0.02)
        yield from batches

    with tagged(spark, tag):
        spark.range(1, numPartitions=1).mapInArrow(say, "id long").collect()


def waits(scheduler: Any, jobs: int) -> bool:
    """Those that exist, without those that hold the cores."""
    return len(list(scheduler.statusTracker().getActiveStageIds())) == jobs + CORES


def lines(file: Path) -> int:
    return len(file.read_text().splitlines()) if file.exists() else 0


def items_of(sequence: Any) -> Iterator[Any]:
    for at in range(sequence.length()):
        yield sequence.apply(at)
