"""Tags the Spark jobs of a thread, so that another thread can end them, and orders concurrent jobs by age.

A session in this process (classic) and Spark Connect have different calls for it; in classic Spark the session's
`interruptTag` finds no job, the context's does.

Spark runs next the pool with the fewest running tasks. Among equals it takes the first by name, and the name of a stage
is its number as text: stage 10 would go before stage 9, and the oldest task of a backlog would wait for the others. So
each tag has a scheduler pool with a name that sorts by age: the oldest goes first, with its later stages.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POOL: Final = "spark.scheduler.pool"
_turns = itertools.count()


@contextmanager
def tagged(spark: SparkSession, tag: str) -> Iterator[None]:
    """Tag the jobs that this thread starts inside the block."""
    if not is_classic(spark):
        spark.addTag(tag)
        try:
            yield
        finally:
            spark.clearTags()
        return
    context, pool = spark.sparkContext, f"turn-{next(_turns):018d}"
    context.addJobTag(tag)
    context.setLocalProperty(POOL, pool)
    try:
        yield
    finally:
        context.clearJobTags()
        _remove_pool(context, pool)


def _remove_pool(context: Any, pool: str) -> None:
    """Remove the pool, which Spark created with its first job and would keep."""
    context.setLocalProperty(POOL, None)
    scheduler = context._jsc.sc()  # noqa: SLF001 - pyspark shows no pools
    scheduled = scheduler.getPoolForName(pool)
    if scheduled.isDefined():
        scheduler.taskScheduler().rootPool().removeSchedulable(scheduled.get())


def interrupt(spark: SparkSession, tag: str) -> None:
    """End the jobs that run now. A job that starts later is not ended: repeat until the thread is done."""
    if is_classic(spark):
        spark.sparkContext.cancelJobsWithTag(tag)
    else:
        spark.interruptTag(tag)


def has_tasks(spark: SparkSession, tag: str) -> bool:
    """Whether a task still runs for the tag.

    The tasks of an ended job end when they check for it, which a task in a nested loop never does.
    """
    context: Any = spark.sparkContext
    tracker = context._jsc.sc().statusTracker()  # noqa: SLF001 - pyspark's own does not know tags
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForTag(tag)]
    stages = [tracker.getStageInfo(stage) for job in jobs if job.isDefined() for stage in job.get().stageIds()]
    return any(stage.isDefined() and stage.get().numActiveTasks() > 0 for stage in stages)


def is_classic(spark: SparkSession) -> bool:
    return hasattr(spark, "_jsparkSession")
