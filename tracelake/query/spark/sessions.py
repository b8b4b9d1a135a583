"""Prepared Spark sessions, each of which serves one query at a time and one grant during its life.

A new session needs some tenths of a second before its first row, so a few are prepared. A session that was used for a
grant is used again for that grant only, and dropped when there are too many.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from tracelake.query.collect import PlannedQuery
from tracelake.spark.session import is_lost, jvm_of
from tracelake.spark.tags import has_tasks, interrupt
from tracelake.spark.thread_times import ThreadTimes, thread_times

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SPARE: Final = 2
MOST_VIEWS: Final = 64
"""Of one session. A dataset with frequent commits adds one with every commit."""
MOST_PLANS: Final = 8
"""Of one session; each takes a few hundred KB of Java's heap."""
QUICK: Final = {"spark.sql.adaptive.enabled": "false", "spark.sql.shuffle.partitions": "2"}
"""For small inputs: adaptive planning between stages costs more than it saves."""


@dataclass
class Prepared:
    """A session, with the views of its grant by the files that they show, and its last plans by their text.

    The text of a plan names views, and a view always shows the same files: a plan is never used for another commit.
    """

    spark: SparkSession
    grant: Hashable = None
    org_id: UUID | None = None
    views: OrderedDict[Hashable, tuple[str, DataFrame]] = field(default_factory=OrderedDict)
    plans: OrderedDict[Hashable, PlannedQuery] = field(default_factory=OrderedDict)
    quick: bool | None = None

    def keep(self, key: Hashable, name: str, frame: DataFrame) -> None:
        self.views[key] = (name, frame)
        while len(self.views) > MOST_VIEWS:
            _, (old, _) = self.views.popitem(last=False)
            self.spark.catalog.dropTempView(old)

    def keep_plan(self, key: Hashable, plan: PlannedQuery) -> None:
        self.plans[key] = plan
        while len(self.plans) > MOST_PLANS:
            self.plans.popitem(last=False)

    def plan_for(self, *, small: bool) -> None:
        """Set how Spark plans, if it differs from the last query."""
        if self.quick is not small:
            for key, value in QUICK.items():
                self.spark.conf.set(key, value if small else self._usual(key))
            self.quick = small

    def _usual(self, key: str) -> str:
        value: Any = self.spark.sparkContext.getConf().get(key)
        return str(value or "true")


class Sessions:
    """All sessions of a JVM; used from many threads."""

    def __init__(self, spark: SparkSession, kept: int, *, spare: int = SPARE) -> None:
        self._spark = spark
        self._kept = kept
        self._spare = spare
        self._lock = threading.Lock()
        self._fresh: list[Prepared] = []
        self._idle: list[Prepared] = []
        """Sessions that wait for a query of their grant, the longest unused first."""
        self._maker = ThreadPoolExecutor(1, "sessions")
        self._closed = False

    @property
    def fresh(self) -> int:
        return len(self._fresh)

    @property
    def kept(self) -> int:
        return len(self._idle)

    def fill(self) -> None:
        """Make the missing spare sessions, in the background."""
        with self._lock:
            missing = self._spare - len(self._fresh)
        for _ in range(missing):
            with suppress(RuntimeError):  # it is closed
                self._maker.submit(self._make_spare)

    def take(self, grant: Hashable, org_id: UUID | None = None) -> Prepared:
        """Return a session of this grant, or an unused one."""
        with self._lock:
            idle = next((item for item in reversed(self._idle) if item.grant == grant), None)
            if idle is not None:
                self._idle.remove(idle)
                return idle
            prepared = self._fresh.pop() if self._fresh else None
        prepared = prepared or self._prepare()
        prepared.grant, prepared.org_id = grant, org_id
        self.fill()
        return prepared

    def give_back(self, prepared: Prepared, of_org: int | None = None) -> None:
        """`of_org`: how many are kept for its organisation; None: no limit but that of all."""
        with self._lock:
            self._idle.append(prepared)
            own = [session for session in self._idle if session.org_id == prepared.org_id]
            old = own[:-of_org] if of_org else []
            self._idle = [session for session in self._idle if not any(session is item for item in old)]
            old += self._idle[: -self._kept]
            del self._idle[: -self._kept]
        for session in old:
            self._drop_views(session)

    def throw_away(self, prepared: Prepared) -> None:
        """Drop a session in which a query failed."""
        self._drop_views(prepared)

    def interrupt(self, tag: str) -> None:
        with suppress(Exception):  # a JVM that is gone runs nothing
            interrupt(self._spark, tag)

    def runs(self, tag: str) -> bool:
        """Whether tasks of this tag still use a core."""
        with suppress(Exception):
            return has_tasks(self._spark, tag)
        return False

    def thread_times(self) -> dict[int, ThreadTimes]:
        """The processor times of the JVM's threads."""
        return thread_times(jvm_of(self._spark))

    def lost(self, error: BaseException) -> bool:
        """Whether the error came from the end of Spark. May take two seconds."""
        return self._closed or is_lost(self._spark, error)

    def close(self) -> None:
        """Drop all sessions; before their Spark is ended, or after it was lost."""
        self._closed = True
        with self._lock:
            self._fresh.clear()
            self._idle.clear()
        self._maker.shutdown(wait=False, cancel_futures=True)

    def _make_spare(self) -> None:
        with suppress(Exception):  # it is made when it is needed, and the error is raised then
            prepared = self._prepare()
            with self._lock:
                self._fresh.append(prepared)

    def _prepare(self) -> Prepared:
        prepared = Prepared(self._spark.newSession())
        prepared.plan_for(small=True)
        prepared.spark.sql("SELECT 1 AS warm").collect()  # loads the session's catalog, parser and planner
        return prepared

    def _drop_views(self, prepared: Prepared) -> None:
        with suppress(Exception):  # the JVM drops an unreferenced session anyway
            for name, _ in prepared.views.values():
                prepared.spark.catalog.dropTempView(name)
        prepared.views.clear()
        prepared.plans.clear()
