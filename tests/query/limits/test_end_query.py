"""When Spark is ended for a query that does not end: not merely because the machine is slow."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass

import pytest

from tracelake.query.end_query import LONGEST_FACTOR, PLANNING_SECONDS, is_stuck
from tracelake.spark.thread_times import ThreadTimes, share_of_cores, thread_times

STUCK = 1.5
BUSY = "while True: pass"


@dataclass
class Query:
    tag: str = "query-1"
    began: float = 100.0
    seconds: float = 10.0


@pytest.mark.parametrize(("share", "factor"), [(1.0, 1), (0.5, 2), (0.25, 4), (0.001, LONGEST_FACTOR), (0.0, 10)])
def test_a_query_gets_more_time_while_spark_waits_for_cores_up_to_a_limit(share: float, factor: float) -> None:
    query = Query()
    over = query.began + query.seconds
    assert not is_stuck(query, over + factor * STUCK - 0.01, STUCK, share, runs=True)
    assert is_stuck(query, over + factor * STUCK, STUCK, share, runs=True)


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_a_query_without_tasks_counts_as_planning_for_the_planning_time_of_this_machine(share: float) -> None:
    query = Query(seconds=0.1)
    planned = query.began + PLANNING_SECONDS / share
    assert not is_stuck(query, planned - 0.01, STUCK, share, runs=False)
    assert is_stuck(query, planned, STUCK, share, runs=False)


def test_only_threads_present_in_both_samples_count() -> None:
    before = {1: ThreadTimes(10, 1), 2: ThreadTimes(5, 5), 3: ThreadTimes(70, 70)}
    now = {1: ThreadTimes(11, 3), 2: ThreadTimes(6, 6), 4: ThreadTimes(90, 0)}
    assert share_of_cores(before, now) == 2 / 5
    assert share_of_cores(before, before) == 1.0, "who wants no core waits for none"
    assert share_of_cores({}, now) == 1.0, "not said"


@pytest.mark.skipif(not thread_times(os.getpid()), reason="this system does not say how long threads waited for a core")
def test_the_wait_of_a_process_that_shares_its_core_is_measured() -> None:
    core = f"import os; os.sched_setaffinity(0, {{{min(os.sched_getaffinity(0))}}})"
    busy = [subprocess.Popen([sys.executable, "-c", f"{core}\n{BUSY}"]) for _ in range(3)]
    try:
        before = thread_times(busy[0].pid)
        while share_of_cores(before, thread_times(busy[0].pid)) > 0.7:
            time.sleep(0.05)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert thread_times(busy[0].pid) == {}, "it has ended"
