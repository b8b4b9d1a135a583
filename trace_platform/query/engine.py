"""Answers questions: a slot, a session of the asker's own, the plan looked at, the rows within their bounds.

Everything that Spark does for a question happens in one thread under one tag. When its time is over, or nobody waits
any more, the tag is interrupted until the thread and its tasks have ended; only then is its slot free.
"""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import structlog

from trace_platform.errors import QueryTimeout, SetupError, TraceError, Unavailable
from trace_platform.observe.metrics import Metrics
from trace_platform.ports import ObjectStore
from trace_platform.query.collect import Rows, collect, export
from trace_platform.query.failures import in_our_words
from trace_platform.query.plans import planned
from trace_platform.query.question import Question
from trace_platform.query.sessions import Prepared, Sessions
from trace_platform.query.slots import Slots
from trace_platform.query.spark import Warm
from trace_platform.query.views import Store, views_of
from trace_platform.query_contracts import Exported, ResultColumn
from trace_platform.settings import QuerySettings
from trace_platform.spark.plan_check import checked_frame
from trace_platform.spark.tags import tagged

if TYPE_CHECKING:
    import pyarrow as pa

log = structlog.get_logger()

AGAIN_SECONDS: Final = 0.1
"""Between interrupts: a job that begins just after one is not ended by it."""
ANSWER_SECONDS: Final = 2.0
"""How long a refusal waits for the end of what it refuses."""


@dataclass(frozen=True)
class Found:
    """What came of a question: rows, or files."""

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
    """One question in its thread."""

    question: Question
    over: threading.Event = field(default_factory=threading.Event)
    """Set when it is to end; looked at between the steps that no interrupt reaches."""
    told: asyncio.Event = field(default_factory=asyncio.Event)
    """The same for who watches it."""

    def end(self) -> None:
        self.over.set()
        self.told.set()

    @property
    def tag(self) -> str:
        return f"query-{self.question.id}"

    def go_on(self) -> None:
        if self.over.is_set():
            raise _timeout(self.question)


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
        self._stuck_seconds = settings.stuck_seconds
        self._slots = Slots(settings.concurrency, settings.waiting, settings.wait_seconds)
        self._threads = ThreadPoolExecutor(settings.concurrency, "query")
        self._ending: set[asyncio.Task[None]] = set()
        for state in ("running", "waiting"):
            self._metrics.queries_in_hand.labels(state).set_function(partial(getattr, self._slots, state))

    async def ask(self, question: Question) -> Found:
        await self._slots.take()
        running = _Running(question)
        try:
            sessions = await self._sessions()
            thread = asyncio.get_running_loop().run_in_executor(self._threads, self._answer, sessions, running)
        except BaseException:
            self._slots.give_back()
            raise
        ended = asyncio.create_task(self._until_ended(sessions, running, thread))
        self._ending.add(ended)
        ended.add_done_callback(self._ending.discard)
        try:
            return await asyncio.wait_for(asyncio.shield(thread), question.seconds)
        except TimeoutError:
            raise _timeout(question) from None
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

    async def _until_ended(self, sessions: Sessions, running: _Running, thread: asyncio.Future[Found]) -> None:
        """Its slot is free when its thread and cores are. One that no interrupt reaches takes the JVM with it."""
        try:
            told: asyncio.Future[Any] = asyncio.create_task(running.told.wait())
            both: set[asyncio.Future[Any]] = {thread, told}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            told.cancel()
            since = time.monotonic()
            while await self._goes_on(sessions, running, thread):
                await asyncio.to_thread(sessions.interrupt, running.tag)
                await (asyncio.sleep(AGAIN_SECONDS) if thread.done() else asyncio.wait([thread], timeout=AGAIN_SECONDS))
                if time.monotonic() - since > self._stuck_seconds:
                    if await self._warm.give_up(sessions):
                        self._metrics.query_stuck.inc()
                    since = time.monotonic()
        finally:
            self._slots.give_back()
        if not thread.cancelled():
            thread.exception()

    async def _goes_on(self, sessions: Sessions, running: _Running, thread: asyncio.Future[Found]) -> bool:
        """Rows that came leave nothing behind. A question that was ended, or failed, may leave tasks in their loops."""
        if not thread.done():
            return True
        if thread.cancelled() or thread.exception() is None:
            return False
        return await asyncio.to_thread(sessions.runs, running.tag)

    def _answer(self, sessions: Sessions, running: _Running) -> Found:
        """In a thread of its own."""
        try:
            prepared = sessions.take(running.question.asker.grant)
        except Exception as wrong:  # noqa: BLE001 - py4j raises what it likes when the JVM dies under it
            raise self._because(wrong) from None
        try:
            found = self._read(prepared, running)
        except Exception as wrong:  # noqa: BLE001
            sessions.throw_away(prepared)
            raise self._because(wrong) from None
        sessions.give_back(prepared)
        return found

    def _read(self, prepared: Prepared, running: _Running) -> Found:
        question, spark = running.question, prepared.spark
        prepared.plan_for(small=question.small)
        names: dict[str, str] = {}
        with (
            tagged(spark, running.tag),
            in_our_words(names, self._max_bytes),
            views_of(
                prepared, question.relations, self._store, question.asker.org_id, question.checked.read_once
            ) as views,
        ):
            names.update(views)
            running.go_on()
            if question.export is not None:
                frame = checked_frame(spark, question.checked.render(views), frozenset(views.values()))
                running.go_on()
                exported, columns = export(frame, self._store.objects, question.export, question.files)
                return Found(columns, None, exported=exported)
            plan = planned(prepared, question, views, self._max_bytes)
            running.go_on()
            rows: Rows = collect(plan, question.max_rows, self._max_bytes)
            return Found(rows.columns, rows.table, rows.truncated)

    def _because(self, wrong: Exception) -> Exception:
        """Whatever is said when the JVM dies under a question: that it has died."""
        if self._warm.lost():
            return Unavailable("the Query service lost its Spark, and starts another", hint="ask again in a moment")
        if isinstance(wrong, TraceError):
            return wrong
        log.warning("a question broke", kind=type(wrong).__name__)  # what it says may hold what was asked
        return Unavailable("the Query service could not ask its Spark", hint="ask again in a moment")


def _timeout(question: Question) -> QueryTimeout:
    return QueryTimeout(
        f"it took longer than {question.seconds:g} s, and was ended", hint="read less, or have the rows exported"
    )
