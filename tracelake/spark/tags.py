"""Everything a thread asks of Spark carries a tag, by which another thread can end it, and has its turn.

A session in this process (classic) and Spark Connect have different calls for it; in classic Spark the session's own
`interruptTag` finds no job, the context's does.

Whoever has fewest tasks on cores is next. Among equals Spark takes the first by name, and the name of a stage is its
number as text: stage 10 would go before stage 9, and the oldest of a backlog would wait for the others. So each tag is
a scheduler pool of its own, with a name that sorts by age: the oldest goes first, its later stages too.
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
    """For this thread, as long as the block lasts."""
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
        _leave(context, pool)


def _leave(context: Any, pool: str) -> None:
    """Spark makes a pool with its first job, and would keep it for ever."""
    context.setLocalProperty(POOL, None)
    scheduler = context._jsc.sc()  # noqa: SLF001 - pyspark shows no pools
    found = scheduler.getPoolForName(pool)
    if found.isDefined():
        scheduler.taskScheduler().rootPool().removeSchedulable(found.get())


def interrupt(spark: SparkSession, tag: str) -> None:
    """Ends the jobs that run now. One that begins a moment later is not ended: ask again until the thread is done."""
    if is_classic(spark):
        spark.sparkContext.cancelJobsWithTag(tag)
    else:
        spark.interruptTag(tag)


def has_tasks(spark: SparkSession, tag: str) -> bool:
    """Whether a task still runs for the tag. A job that was ended may leave some: a task ends itself when it looks
    whether it should, which one in the middle of a nested loop never does.
    """
    context: Any = spark.sparkContext
    tracker = context._jsc.sc().statusTracker()  # noqa: SLF001 - pyspark's own does not know tags
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForTag(tag)]
    stages = [tracker.getStageInfo(stage) for job in jobs if job.isDefined() for stage in job.get().stageIds()]
    return any(stage.isDefined() and stage.get().numActiveTasks() > 0 for stage in stages)


def is_classic(spark: SparkSession) -> bool:
    return hasattr(spark, "_jsparkSession")
