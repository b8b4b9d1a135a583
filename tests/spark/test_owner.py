"""The owner of a process's Spark session. 20 s."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.spark.session import QUICK, end_shared
from tracelake.spark.configuration import SparkOptions
from tracelake.spark.owner import SparkOwner
from tracelake.spark.session import jvm_of

THREADS = 4


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[SparkOwner]:
    end_shared()
    owner = SparkOwner(SparkOptions(tmp_path, "local[2]", driver_memory="512m", conf=QUICK), tmp_path / "cache")
    yield owner
    owner.stop()


def test_a_lost_jvm_is_replaced_once_for_all_threads_and_a_stopped_one_is_gone(owner: SparkOwner) -> None:
    assert not owner.is_running()
    assert owner.status() == "Spark has not started"
    first = owner.session()
    assert owner.session() is first
    version, lost = first.version, jvm_of(first)
    assert lost is not None
    os.kill(lost, signal.SIGKILL)
    while owner.is_running():  # until the process has ended
        pass
    with ThreadPoolExecutor(THREADS) as threads:
        replaced = list(threads.map(lambda _: owner.session(), range(THREADS)))
    assert len({id(session) for session in replaced}) == 1
    assert replaced[0] is not first
    assert replaced[0].range(3).count() == 3
    assert owner.status().startswith(f"Spark {version} on local[2], Java ")
    owner.stop()
    assert not owner.is_running()


def test_the_status_does_not_show_the_token_of_a_spark_connect_server(tmp_path: Path) -> None:
    class Session:
        version = "4"

    owner = SparkOwner(SparkOptions(tmp_path, remote="sc://host:1/;token=secret"), tmp_path, lambda *_: Session())  # type: ignore[arg-type]
    owner.session()
    assert owner.status() == "Spark 4 on sc://host:1/"
