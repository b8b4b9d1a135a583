"""Which tests run, which of them in one process, and in which order the processes take them.

Tests that share what takes long to start, a Spark session above all, are one unit: in two processes it would be started
twice, and again after each file of others in between. Every other file is a unit of its own. Units that take long come
first, so that no process is left alone with one at the end.

A test marked `long` repeats at length what shorter tests show: more stories, more points at which a process is killed,
more values. About forty of them need a third of the time of all tests, so `make test` leaves them out and CI does not.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

SHARED_SPARK = (
    "tests/operators/",
    "tests/hostile/",
    "tests/sink/",
    "tests/spark/test_parquet_reader.py",
    "tests/spark/test_store_away.py",
    "tests/udf/test_local_run.py",
    "tests/test_dags.py",
    "tests/walk/test_one_event.py",
)
"""Those of `tests/support/spark/session.py::shared_session`."""
UNITS = {
    "Connect server": ("tests/cluster/test_connect.py", "tests/cluster/test_spark_dies.py"),
    "Query service": ("tests/query/",),
    "chain walk": ("tests/chain_walk/",),  # shares it too, and would make that unit longer than a third of all
    "runner": ("tests/runner/",),  # the same, and one runner in a system of its own
    "shared Spark": SHARED_SPARK,
}

SLOWEST = (
    "shared Spark",
    "chain walk",
    "Query service",
    "tests/lite/up/test_up.py",
    "tests/lite/up/test_starts_and_ends.py",
    "runner",
    "Connect server",
    "tests/faults/test_crash_points.py",
    "tests/faults/test_whole_system_storm.py",
    "tests/lite/test_backup.py",
    "tests/faults/test_frozen_and_killed.py",
    "tests/spark/test_session.py",
    "tests/spark/test_session_processes.py",
    "tests/lite/test_demo.py",
    "tests/cluster/test_standalone.py",
    "tests/cluster/test_executors.py",
    "tests/cluster/test_task_credentials.py",
    "tests/upgrade/test_former_home.py",
    "tests/spark/test_class_archive.py",
    "tests/faults/test_faulty_queue.py",
    "tests/lite/up/test_up_seaweedfs.py",
    "tests/delivery/test_deliver.py",
    "tests/spark/test_postgres_rows.py",
    "tests/gateway/test_user_api.py",
    "tests/chain/test_devchain_input.py",
    "tests/setup/test_setup_env.py",
    "tests/cli/test_bad_input.py",
    "tests/cluster/test_two_workers.py",
    "tests/cluster/test_secrets.py",
    "tests/contracts/queue/test_waiting.py",
    "tests/dispatcher/http/test_listeners.py",
    "tests/faults/test_cut_at_commit.py",
    "tests/faults/test_full_home.py",
    "tests/lite/test_postgres.py",
)
"""The longest first. What is not named follows, by its number of tests."""


def add_long_option(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="the tests marked `long` too, as in CI")
    parser.addoption("--extra", action="append", default=[], help="those marked `long` of this extra too, such as aws")


def leave_out_long_tests(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects them in a run of everything without `--long`; a test whose path is given runs."""
    if config.getoption("--long") or config.args != config.getini("testpaths"):
        return
    extras = set(config.getoption("--extra"))
    marked = ((item, item.get_closest_marker("long")) for item in items)
    long = [item for item, marker in marked if marker is not None and not extras & set(marker.args)]
    config.hook.pytest_deselected(items=long)
    items[:] = [item for item in items if item not in set(long)]


def shuffle(items: list[pytest.Item], seed: int) -> None:
    """Files in another order, and the tests of each in another: none may need what one before it has left."""
    dice = random.Random(seed)  # noqa: S311 - any order will do
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.nodeid.partition("::")[0], []).append(item)
    order = list(files.values())
    dice.shuffle(order)
    for tests in order:
        dice.shuffle(tests)
    items[:] = [item for tests in order for item in tests]


class SlowestFirst(LoadScopeScheduling):  # type: ignore[misc]  # xdist carries no types
    def _split_scope(self, nodeid: str) -> str:
        path = str(nodeid).split("::", 1)[0]
        return next((unit for unit, places in UNITS.items() if path.startswith(places)), path)

    def remove_node(self, node: Any) -> str | None:
        """Gives back what a dead process had not done, and returns the test that it died in: that one has failed.

        xdist would run it again in the next process, for as often as processes may die.
        """
        units = self.assigned_work.pop(node)
        left = {scope: unit for scope, unit in units.items() if not all(unit.values())}
        if not left:
            return None
        died_in = next(iter(left.values()))
        test = next(name for name, done in died_in.items() if not done)
        died_in[test] = True
        self.workqueue.update({scope: unit for scope, unit in left.items() if not all(unit.values())})
        for other in self.assigned_work:
            self._reschedule(other)
        return str(test)

    def _reschedule(self, node: Any) -> None:
        """Nothing yet for a process that takes the place of a dead one and has not collected its tests.

        xdist would end the whole run where two processes had died and one of the next is quicker than the other.
        """
        if node in self.registered_collections:
            super()._reschedule(node)

    def _assign_work_unit(self, node: Any) -> None:
        """The slowest unit that waits, instead of the one with the most tests."""
        slowest = min(self.workqueue, key=lambda unit: SLOWEST.index(unit) if unit in SLOWEST else len(SLOWEST))
        self.workqueue.move_to_end(slowest, last=False)
        super()._assign_work_unit(node)
