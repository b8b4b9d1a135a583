"""The Query service starts one Spark for all queries that wait for it, also if the first caller is cancelled."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.waiting import SECONDS
from tracelake.query.spark.jvm import QuerySpark
from tracelake.query.spark.sessions import Sessions
from tracelake.spark.configuration import SparkOptions
from tracelake.spark.owner import SparkOwner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.anyio


async def test_a_caller_cancelled_during_the_start_of_spark_does_not_cancel_the_start(
    spark: SparkSession, tmp_path: Path
) -> None:
    begun, proceed, starts = threading.Event(), threading.Event(), 0

    def start(*_: Any) -> SparkSession:
        nonlocal starts
        starts += 1
        begun.set()
        assert proceed.wait(SECONDS)
        return spark

    own = QuerySpark(SparkOwner(SparkOptions(tmp_path), tmp_path, start), kept=1)
    first = asyncio.create_task(own.sessions())
    await asyncio.to_thread(begun.wait, 60)
    second = asyncio.create_task(own.sessions())
    first.cancel()
    await asyncio.wait({first})
    third = asyncio.create_task(own.sessions())
    await asyncio.sleep(0)
    proceed.set()
    assert await second is await third
    assert starts == 1


async def test_a_query_stuck_in_a_spark_that_has_ended_does_not_end_the_next_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    own = QuerySpark(SparkOwner(SparkOptions(tmp_path), tmp_path, lambda *_: spark), kept=1)
    now, before = await own.sessions(), Sessions(spark, 1)
    assert not await own.give_up(before)
    assert await own.sessions() is now
