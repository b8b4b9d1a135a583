"""Which tests run in one process, and in which order the processes take them.

Tests that share what takes long to start, a Spark session above all, are one unit: in two processes it would be started
twice, and again after each file of others in between. Every other file is a unit of its own. Units that take long come
first, so that no process is left alone with one at the end.
"""

from __future__ import annotations

from typing import Any

from xdist.scheduler import LoadScopeScheduling

SHARED_SPARK = (
    "tests/operators/",
    "tests/hostile/",
    "tests/sink/",
    "tests/spark/test_parquet_reader.py",
    "tests/spark/test_store_away.py",
    "tests/udf/test_local_run.py",
    "tests/test_dags.py",
)
"""Those of `tests/support/spark/session.py::shared_session`."""
UNITS = {
    "Query service": ("tests/query/",),
    "chain walk": ("tests/chain_walk/",),  # shares it too, and would make that unit longer than a third of all
    "shared Spark": SHARED_SPARK,
}

SLOWEST = (
    "shared Spark",
    "chain walk",
    "Query service",
    "tests/lite/test_up.py",
    "tests/runner/test_killed.py",
    "tests/faults/test_crash_points.py",
    "tests/faults/test_whole_system_storm.py",
    "tests/lite/test_demo.py",
    "tests/spark/test_session.py",
    "tests/upgrade/test_former_home.py",
    "tests/cluster/test_standalone.py",
    "tests/spark/test_class_archive.py",
    "tests/cluster/test_spark_dies.py",
    "tests/cluster/test_connect.py",
    "tests/spark/test_postgres_rows.py",
    "tests/setup/test_setup_env.py",
    "tests/runner/test_both_runtimes.py",
    "tests/delivery/test_deliver.py",
    "tests/faults/test_faulty_queue.py",
)
"""The longest first. What is not named follows, by its number of tests."""


class SlowestFirst(LoadScopeScheduling):  # type: ignore[misc]  # xdist carries no types
    def _split_scope(self, nodeid: str) -> str:
        path = str(nodeid).split("::", 1)[0]
        return next((unit for unit, places in UNITS.items() if path.startswith(places)), path)

    def _assign_work_unit(self, node: Any) -> None:
        """The slowest unit that waits, instead of the one with the most tests."""
        slowest = min(self.workqueue, key=lambda unit: SLOWEST.index(unit) if unit in SLOWEST else len(SLOWEST))
        self.workqueue.move_to_end(slowest, last=False)
        super()._assign_work_unit(node)
