"""Answers queries: a slot, a session of the caller's own, the plan looked at, the rows within their bounds.

Everything that Spark does for a query happens in one thread under one tag. When its time is over, or nobody waits any
more, the tag is interrupted until the thread and its tasks have ended; only then is its slot free. What no interrupt
ends is ended with its JVM. Queries beside it, and those whose JVM died by itself, are run once more.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import structlog

from tracelake.errors import QueryTimeout, SetupError, SparkLost, TraceError, Unavailable
from tracelake.ports import ObjectStore
from tracelake.query.checked_query import CheckedQuery
from tracelake.query.collect import Rows, collect, export
from tracelake.query.end_query import EndQuery
from tracelake.query.failures import in_our_words, spark_lost
from tracelake.query.plans import planned
from tracelake.query.sessions import Prepared, Sessions
from tracelake.query.slots import Kind, Slots
from tracelake.query.spark import Warm
from tracelake.query.views import Store, views_of
from tracelake.runtime.metrics import Metrics
from tracelake.settings import QuerySettings
from tracelake.spark.plan_check import checked_frame
from tracelake.spark.tags import tagged
from tracelake.wire.query_messages import Exported, ResultColumn

if TYPE_CHECKING:
    import pyarrow as pa

log = structlog.get_logger()

ANSWER_SECONDS: Final = 1.0
"""How long a refusal waits for the end of what it refuses."""


@dataclass(frozen=True)
class Found:
    """What came of a query: rows, or files."""

    columns: list[ResultColumn]
    table: pa.Table | None
    truncated: bool = False
    exported: Exported | None = None

    @property
    def rows(self) -> int:
        return self.exported.rows if self.exported else self.table.num_rows if self.table is not None else 0

    @property
    def bytes(self) -> int:
        return self.exported.bytes if self.exported else self.table.nbytes if self.table is not None else 0


@dataclass
class _Running:
    """One query in its thread."""

    query: CheckedQuery
    seconds: float
    """How long it may."""
    over: threading.Event = field(default_factory=threading.Event)
    """Set when it is to end; looked at between the steps that no interrupt reaches."""
    told: asyncio.Event = field(default_factory=asyncio.Event)
    """The same for who watches it."""
    began: float = field(default_factory=time.monotonic)

    def end(self) -> None:
        self.over.set()
        self.told.set()

    @property
    def tag(self) -> str:
        return f"query-{self.query.id}"

    def go_on(self) -> None:
        if self.over.is_set():
            raise _timeout(self.query)


class Engine:
    def __init__(
        self,
        warm: Warm,
        objects: ObjectStore,
        data_dsn: str,
        settings: QuerySettings,
        metrics: Metrics | None = None,
    ) -> None:
        self._warm = warm
        self._metrics = metrics or Metrics()
        self._store = Store(objects, data_dsn)
        self._max_bytes = settings.max_bytes
        self._end = EndQuery(self._give_up, settings.stuck_seconds)
        self._wait_seconds = settings.wait_seconds
        self._again = asyncio.Lock()
        self._slots = Slots(
            settings.concurrency, settings.waiting, settings.wait_seconds, for_users=settings.user_slots
        )
        self._threads = ThreadPoolExecutor(settings.concurrency, "query")
        self._ending: set[asyncio.Task[None]] = set()
        for state in ("running", "waiting"):
            self._metrics.queries_in_hand.labels(state).set_function(partial(getattr, self._slots, state))

    async def ask(self, query: CheckedQuery) -> Found:
        try:
            async with asyncio.timeout(query.answer_within):
                return await self._ask_twice(query)
        except TimeoutError:
            raise _timeout(query) from None

    async def _ask_twice(self, query: CheckedQuery) -> Found:
        """Run once more if Spark died under it, within what is left of its time.

        Which of several queries cost Spark its life is not known. So those that are run once more take turns: one that
        does it again does it to none of the others.
        """
        running = _Running(query, query.seconds)
        try:
            return await self._ask(running)
        except SparkLost:
            left = query.seconds - (time.monotonic() - running.began)
            if left <= 0:
                raise
        async with self._turn_after_loss():
            return await self._ask(_Running(query, left))

    @asynccontextmanager
    async def _turn_after_loss(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._wait_seconds):
                await self._again.acquire()
        except TimeoutError:
            raise spark_lost() from None
        try:
            yield
        finally:
            self._again.release()

    async def _ask(self, running: _Running) -> Found:
        kind: Kind = "user" if running.query.caller.task_id is None else "task"
        await self._slots.take(kind)
        try:
            sessions = await self._sessions()
            running.began = time.monotonic()
            thread = asyncio.get_running_loop().run_in_executor(self._threads, self._answer, sessions, running)
        except BaseException:
            self._slots.give_back(kind)
            raise
        ended = asyncio.create_task(self._until_ended(sessions, running, thread, kind))
        self._ending.add(ended)
        ended.add_done_callback(self._ending.discard)
        try:
            return await asyncio.wait_for(asyncio.shield(thread), running.seconds)
        except TimeoutError:
            raise _timeout(running.query) from None
        finally:
            running.end()
            await asyncio.wait({ended}, timeout=ANSWER_SECONDS)

    async def _sessions(self) -> Sessions:
        try:
            sessions = await self._warm.sessions()
        except SetupError as wrong:
            log.error("Spark does not start", **wrong.as_dict())  # noqa: TRY400 - a refusal is said, not traced
            raise Unavailable("the Query service has no Spark", hint="its log says why; `trace doctor` helps") from None
        for state in ("fresh", "kept"):
            self._metrics.query_sessions.labels(state).set_function(partial(getattr, sessions, state))
        return sessions

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._end.close()

    async def _until_ended(
        self, sessions: Sessions, running: _Running, thread: asyncio.Future[Found], kind: Kind
    ) -> None:
        """Its slot is free when its thread and cores are."""
        try:
            told: asyncio.Future[Any] = asyncio.create_task(running.told.wait())
            both: set[asyncio.Future[Any]] = {thread, told}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            told.cancel()
            await self._end(sessions, running, thread)
        finally:
            self._slots.give_back(kind)

    async def _give_up(self, sessions: Sessions) -> None:
        if await self._warm.give_up(sessions):
            self._metrics.query_stuck.inc()

    def _answer(self, sessions: Sessions, running: _Running) -> Found:
        """In a thread of its own."""
        try:
            prepared = sessions.take(running.query.caller.grant)
        except Exception as wrong:  # noqa: BLE001 - py4j raises what it likes when the JVM dies under it
            raise _because(wrong, sessions, running) from None
        try:
            found = self._read(prepared, running)
        except Exception as wrong:  # noqa: BLE001
            sessions.throw_away(prepared)
            raise _because(wrong, sessions, running) from None
        sessions.give_back(prepared)
        return found

    def _read(self, prepared: Prepared, running: _Running) -> Found:
        query, spark = running.query, prepared.spark
        prepared.plan_for(small=query.small)
        names: dict[str, str] = {}
        with (
            tagged(spark, running.tag),
            in_our_words(names, self._max_bytes),
            views_of(prepared, query.relations, self._store, query.caller.org_id, query.checked.read_once) as views,
        ):
            names.update(views)
            running.go_on()
            if query.export is not None:
                frame = checked_frame(spark, query.checked.render(views), frozenset(views.values()))
                running.go_on()
                exported, columns = export(frame, self._store.objects, query.export, query.files)
                return Found(columns, None, exported=exported)
            plan = planned(prepared, query, views, self._max_bytes)
            running.go_on()
            rows: Rows = collect(plan, query.max_rows, self._max_bytes)
            return Found(rows.columns, rows.table, rows.truncated)


def _because(wrong: Exception, sessions: Sessions, running: _Running) -> Exception:
    """Whatever is said when the JVM dies under a query: that it has died."""
    if running.over.is_set():  # what an interrupt breaks says nothing
        return _timeout(running.query)
    if isinstance(wrong, TraceError) and type(wrong) is not Unavailable:
        return wrong
    if sessions.lost(wrong):
        return spark_lost()
    if isinstance(wrong, TraceError):
        return wrong
    log.warning("a query broke", kind=type(wrong).__name__)  # what it says may hold what was asked
    return Unavailable("the Query service could not ask its Spark", hint="ask again in a moment")


def _timeout(query: CheckedQuery) -> QueryTimeout:
    return QueryTimeout(
        f"it took longer than {query.seconds:g} s, and was ended",
        hint="read less, have the rows exported, or ask again when less runs",
    )
