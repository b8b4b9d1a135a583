"""Everything a thread asks of Spark carries a tag, by which another thread can end it.

A session in this process (classic) and Spark Connect have different calls for it; in classic Spark the session's own
`interruptTag` finds no job, the context's does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

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


def is_classic(spark: SparkSession) -> bool:
    return hasattr(spark, "_jsparkSession")
