"""Prepared Spark sessions. One serves one query at a time, and one grant for as long as it lives.

A fresh session costs some tenths of a second before its first row, so a few stand ready. Once one was used for a grant
it goes back to that grant's and is thrown away when others need the room: never to another's.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tracelake.query.collect import Plan
from tracelake.spark.lost import is_lost
from tracelake.spark.session import jvm_of
from tracelake.spark.tags import has_tasks, interrupt
from tracelake.spark.thread_times import ThreadTimes, thread_times

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SPARE: Final = 2
MOST_VIEWS: Final = 64
"""Of one session. A dataset that is committed to often leaves one behind with every commit."""
MOST_PLANS: Final = 8
"""Of one session, a few hundred KB of Java's memory each."""
QUICK: Final = {"spark.sql.adaptive.enabled": "false", "spark.sql.shuffle.partitions": "2"}
"""For small inputs: planning anew between stages costs more than it saves."""


@dataclass
class Prepared:
    """A session and the views that its grant has used, by the files that each shows; and its last plans, by their text.

    A text names views and a view shows the same files for ever, so a plan never outlives the commit it was made for.
    """

    spark: SparkSession
    grant: Hashable = None
    views: OrderedDict[Hashable, tuple[str, DataFrame]] = field(default_factory=OrderedDict)
    plans: OrderedDict[Hashable, Plan] = field(default_factory=OrderedDict)
    quick: bool | None = None

    def keep(self, key: Hashable, name: str, frame: DataFrame) -> None:
        self.views[key] = (name, frame)
        while len(self.views) > MOST_VIEWS:
            _, (old, _) = self.views.popitem(last=False)
            self.spark.catalog.dropTempView(old)

    def keep_plan(self, key: Hashable, plan: Plan) -> None:
        self.plans[key] = plan
        while len(self.plans) > MOST_PLANS:
            self.plans.popitem(last=False)

    def plan_for(self, *, small: bool) -> None:
        """Set how Spark plans; only where that is another way than last time."""
        if self.quick is not small:
            for key, value in QUICK.items():
                self.spark.conf.set(key, value if small else self._usual(key))
            self.quick = small

    def _usual(self, key: str) -> str:
        given: Any = self.spark.sparkContext.getConf().get(key)
        return str(given or "true")


class Sessions:
    """All of them; used from many threads."""

    def __init__(self, spark: SparkSession, kept: int, *, spare: int = SPARE) -> None:
        self._spark = spark
        self._kept = kept
        self._spare = spare
        self._lock = threading.Lock()
        self._fresh: list[Prepared] = []
        self._idle: list[Prepared] = []
        """Those that wait for their grant, the longest unused first."""
        self._making = ThreadPoolExecutor(1, "sessions")
        self._closed = False

    @property
    def fresh(self) -> int:
        return len(self._fresh)

    @property
    def kept(self) -> int:
        return len(self._idle)

    def fill(self) -> None:
        """Have the spare ones made, in the background."""
        with self._lock:
            missing = self._spare - len(self._fresh)
        for _ in range(missing):
            with suppress(RuntimeError):  # it is closed
                self._making.submit(self._make_spare)

    def take(self, grant: Hashable) -> Prepared:
        """A session of this grant, or one that nobody has used."""
        with self._lock:
            mine = next((item for item in reversed(self._idle) if item.grant == grant), None)
            if mine is not None:
                self._idle.remove(mine)
                return mine
            found = self._fresh.pop() if self._fresh else None
        found = found or self._made()
        found.grant = grant
        self.fill()
        return found

    def give_back(self, prepared: Prepared) -> None:
        with self._lock:
            self._idle.append(prepared)
            old = self._idle[: -self._kept]
            del self._idle[: -self._kept]
        for gone in old:
            self._forget(gone)

    def throw_away(self, prepared: Prepared) -> None:
        """One that something went wrong in."""
        self._forget(prepared)

    def interrupt(self, tag: str) -> None:
        with suppress(Exception):  # a JVM that is gone runs nothing
            interrupt(self._spark, tag)

    def runs(self, tag: str) -> bool:
        """Whether anything of it still holds a core."""
        with suppress(Exception):
            return has_tasks(self._spark, tag)
        return False

    def thread_times(self) -> dict[int, ThreadTimes]:
        """Of their JVM."""
        return thread_times(jvm_of(self._spark))

    def lost(self, error: BaseException) -> bool:
        """Whether it was the end of their Spark that made a query fail so. May take two seconds to be sure."""
        return self._closed or is_lost(self._spark, error)

    def close(self) -> None:
        """Before their Spark is ended, or when it has: none of them is of any use then."""
        self._closed = True
        with self._lock:
            self._fresh.clear()
            self._idle.clear()
        self._making.shutdown(wait=False, cancel_futures=True)

    def _make_spare(self) -> None:
        with suppress(Exception):  # a session that cannot be made now is made when it is needed, and said then
            made = self._made()
            with self._lock:
                self._fresh.append(made)

    def _made(self) -> Prepared:
        made = Prepared(self._spark.newSession())
        made.plan_for(small=True)
        made.spark.sql("SELECT 1 AS warm").collect()  # its catalog, parser and planner are made by the first query
        return made

    def _forget(self, prepared: Prepared) -> None:
        with suppress(Exception):  # the JVM forgets it anyway once nobody holds it
            for name, _ in prepared.views.values():
                prepared.spark.catalog.dropTempView(name)
        prepared.views.clear()
        prepared.plans.clear()
