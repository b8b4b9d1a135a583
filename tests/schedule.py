"""Which tests run together in one process, and in which order the processes take them.

A folder whose tests share a fixture that takes long to start (a Spark session, a whole system) is one unit: two files of
it in two processes would start it twice, and so would another folder's file between them. Every other file is a unit.
Units that take long come first, so that no process is left alone with one at the end.
"""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

TOGETHER = ("tests/query/", "tests/operators/", "tests/hostile/", "tests/runner/", "tests/chain_walk/", "tests/sink/")
SLOWEST = (
    "tests/query/",
    "tests/operators/",
    "tests/chain_walk/",
    "tests/hostile/",
)


class SlowestFirst(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.split("::", 1)[0]
        return next((folder for folder in TOGETHER if path.startswith(folder)), path)
