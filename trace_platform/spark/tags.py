"""Everything a thread asks of Spark carries a tag, by which another thread can end it.

A session in this process (classic) and Spark Connect have different calls for it; in classic Spark the session's own
`interruptTag` finds no job, the context's does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def tagged(spark: SparkSession, tag: str) -> Iterator[None]:
    """For this thread, as long as the block lasts."""
    if is_classic(spark):
        spark.sparkContext.addJobTag(tag)
    else:
        spark.addTag(tag)
    try:
        yield
    finally:
        if is_classic(spark):
            spark.sparkContext.clearJobTags()
        else:
            spark.clearTags()


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
