"""The Query service's Spark is started once for all who wait for it, also if the first of them hangs up. 10 s."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from tracelake.query.sessions import Sessions
from tracelake.query.spark import OwnSpark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.anyio


async def test_who_hangs_up_while_spark_starts_takes_it_from_nobody(spark: SparkSession) -> None:
    begun, go_on, starts = threading.Event(), threading.Event(), 0

    def start() -> SparkSession:
        nonlocal starts
        starts += 1
        begun.set()
        assert go_on.wait(60)
        return spark

    own = OwnSpark(start, kept=1)
    first = asyncio.create_task(own.sessions())
    await asyncio.to_thread(begun.wait, 60)
    second = asyncio.create_task(own.sessions())
    first.cancel()
    await asyncio.wait({first})
    third = asyncio.create_task(own.sessions())
    await asyncio.sleep(0)
    go_on.set()
    assert await second is await third
    assert starts == 1


async def test_a_question_that_was_stuck_in_a_spark_that_has_ended_does_not_end_the_next_one(
    spark: SparkSession,
) -> None:
    own = OwnSpark(lambda: spark, kept=1)
    now, before = await own.sessions(), Sessions(spark, 1)
    assert not await own.give_up(before)
    assert await own.sessions() is now
