"""Runs queries on Spark: waits for a slot, takes a session of the grant, checks the plan, collects limited rows.

A query runs in one thread under one Spark tag. When its time is over, or its caller has left, the tag is interrupted
until the thread and its tasks have ended; only then is its slot free. If no interrupt ends it, its JVM is ended.
Queries whose JVM ended are run once more.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import structlog

from tracelake.errors import SetupError, SparkLost, TraceError, Unavailable
from tracelake.ports import ObjectStore
from tracelake.query.checked_query import CheckedQuery
from tracelake.query.collect import Rows, collect, export
from tracelake.query.end_query import EndQuery
from tracelake.query.engine import InProgress, QueryResult, query_timeout
from tracelake.query.failures import spark_lost, translated_errors
from tracelake.query.limits.engine_seconds import EngineSeconds
from tracelake.query.limits.slots import Kind, Slots, kind_of, reserved
from tracelake.query.spark.jvm import QuerySpark
from tracelake.query.spark.plans import planned
from tracelake.query.spark.sessions import Prepared, Sessions
from tracelake.query.spark.views import Store, views_of
from tracelake.runtime.metrics import Metrics
from tracelake.settings import FlowSettings, QuerySettings
from tracelake.spark.plan_check import checked_frame
from tracelake.spark.tags import tagged

log = structlog.get_logger()

ANSWER_SECONDS: Final = 1.0
"""How long a refusal waits for its query to end."""


@dataclass
class _Running:
    """A query in its thread."""

    query: CheckedQuery
    seconds: float
    """Its time limit."""
    over: threading.Event = field(default_factory=threading.Event)
    """Set when it is to end; checked between steps that cannot be interrupted."""
    end_requested: asyncio.Event = field(default_factory=asyncio.Event)
    """The same, for the event loop."""
    began: float = field(default_factory=time.monotonic)

    def end(self) -> None:
        self.over.set()
        self.end_requested.set()

    @property
    def tag(self) -> str:
        return f"query-{self.query.id}"

    def check_time(self) -> None:
        if self.over.is_set():
            raise query_timeout(self.query)


class SparkEngine:
    def __init__(
        self,
        spark: QuerySpark,
        objects: ObjectStore,
        data_dsn: str,
        settings: QuerySettings,
        metrics: Metrics | None = None,
        *,
        spent: EngineSeconds | None = None,
        flow: FlowSettings | None = None,
    ) -> None:
        self._spark = spark
        self._spent = spent or EngineSeconds(settings.engine_seconds)
        self._metrics = metrics or Metrics()
        self._store = Store(objects, data_dsn)
        self._max_bytes = settings.max_bytes
        self._end = EndQuery(self._give_up, settings.stuck_seconds)
        self._wait_seconds = settings.wait_seconds
        self._again = asyncio.Lock()
        self._slots = Slots(
            settings.concurrency,
            settings.waiting,
            settings.wait_seconds,
            kept=reserved(settings, flow or FlowSettings()),
            per_org=settings.org_concurrency,
        )
        self._threads = ThreadPoolExecutor(settings.concurrency, "query")
        self._ending: set[asyncio.Task[None]] = set()

    async def run(self, query: CheckedQuery) -> QueryResult:
        self._spent.check(query.caller.org_id, query.caller.limits.query_seconds)
        try:
            async with asyncio.timeout(query.answer_within):
                return await self._run_twice(query)
        except TimeoutError:
            raise query_timeout(query) from None

    def in_progress(self, state: InProgress) -> int:
        return self._slots.waiting if state == "waiting" else self._slots.running

    async def _run_twice(self, query: CheckedQuery) -> QueryResult:
        """Run the query, and once more if its Spark was lost, within the rest of its time.

        Which of several queries ended Spark is not known. So those that are run once more run one at a time: a query
        that ends Spark again does not affect the others.
        """
        running = _Running(query, query.seconds)
        try:
            return await self._run(running)
        except SparkLost:
            left = query.seconds - (time.monotonic() - running.began)
            if left <= 0:
                raise
        async with self._turn_after_loss():
            return await self._run(_Running(query, left))

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

    async def _run(self, running: _Running) -> QueryResult:
        kind = kind_of(running.query.caller)
        org_id = running.query.caller.org_id
        await self._slots.take(kind, org_id)
        try:
            sessions = await self._sessions()
            running.began = time.monotonic()
            thread = asyncio.get_running_loop().run_in_executor(
                self._threads, copy_context().run, self._answer, sessions, running
            )
        except BaseException:
            self._slots.give_back(kind, org_id)
            raise
        ended = asyncio.create_task(self._until_ended(sessions, running, thread, kind))
        self._ending.add(ended)
        ended.add_done_callback(self._ending.discard)
        try:
            return await asyncio.wait_for(asyncio.shield(thread), running.seconds)
        except TimeoutError:
            raise query_timeout(running.query) from None
        finally:
            running.end()
            await asyncio.wait({ended}, timeout=ANSWER_SECONDS)

    async def _sessions(self) -> Sessions:
        try:
            sessions = await self._spark.sessions()
        except SetupError as error:
            log.error("Spark does not start", **error.as_dict())  # noqa: TRY400 - the error has no useful stack
            raise Unavailable("the Query service has no Spark", hint="see its log, and run `trace doctor`") from None
        for state in ("fresh", "kept"):
            self._metrics.query_sessions.labels(state).set_function(partial(getattr, sessions, state))
        return sessions

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._end.close()

    async def _until_ended(
        self, sessions: Sessions, running: _Running, thread: asyncio.Future[QueryResult], kind: Kind
    ) -> None:
        """Free the slot when the query's thread and tasks have ended."""
        try:
            end_requested: asyncio.Future[Any] = asyncio.create_task(running.end_requested.wait())
            both: set[asyncio.Future[Any]] = {thread, end_requested}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            end_requested.cancel()
            await self._end(sessions, running, thread)
        finally:
            org_id = running.query.caller.org_id
            self._slots.give_back(kind, org_id)
            own = running.query.caller.limits.query_seconds
            self._spent.charge(org_id, time.monotonic() - running.began, own)

    async def _give_up(self, sessions: Sessions) -> None:
        if await self._spark.give_up(sessions):
            self._metrics.query_stuck.inc()

    def _answer(self, sessions: Sessions, running: _Running) -> QueryResult:
        """Run the query; called in its thread."""
        try:
            prepared = sessions.take(running.query.caller.grant, running.query.caller.org_id)
        except Exception as error:  # noqa: BLE001 - py4j raises what it likes when the JVM dies under it
            raise _error_for(error, sessions, running) from None
        try:
            result = self._read(prepared, running)
        except Exception as error:  # noqa: BLE001
            sessions.throw_away(prepared)
            raise _error_for(error, sessions, running) from None
        sessions.give_back(prepared, running.query.caller.limits.sessions)
        return result

    def _read(self, prepared: Prepared, running: _Running) -> QueryResult:
        query, spark = running.query, prepared.spark
        prepared.plan_for(small=query.small)
        names: dict[str, str] = {}
        with (
            tagged(spark, running.tag),
            translated_errors(names, self._max_bytes),
            views_of(prepared, query.relations, self._store, query.caller.org_id, query.checked.read_once) as views,
        ):
            names.update(views)
            running.check_time()
            if query.export is not None:
                frame = checked_frame(spark, query.checked.render(views), frozenset(views.values()))
                running.check_time()
                exported, columns = export(frame, self._store.objects, query.export, query.files)
                return QueryResult(columns, None, exported=exported, engine="spark")
            plan = planned(prepared, query, views, self._max_bytes)
            running.check_time()
            rows: Rows = collect(plan, query.max_rows, self._max_bytes)
            return QueryResult(rows.columns, rows.table, rows.truncated, engine="spark")


def _error_for(error: Exception, sessions: Sessions, running: _Running) -> Exception:
    """Return the error for the caller; when the JVM ended during the query, that it ended."""
    if running.over.is_set():  # the error comes from the interrupt
        return query_timeout(running.query)
    if isinstance(error, TraceError) and type(error) is not Unavailable:
        return error
    if sessions.lost(error):
        return spark_lost()
    if isinstance(error, TraceError):
        return error
    log.warning("a query failed", kind=type(error).__name__)  # its text may contain the query
    return Unavailable("the Query service could not use its Spark", hint="retry in a moment")
