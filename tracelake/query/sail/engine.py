"""Runs queries on Sail, in the process of their organisation.

A query has a session of its own, in one thread. When its time is over, or its caller has left, it is interrupted; a
process that still works after that, or in which other queries run so that nobody can tell, is ended. Queries whose
process ended are run once more, one after the other.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import copy_context
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID, uuid4

import structlog

from tracelake.domain.sql.gate import CheckedSql
from tracelake.errors import EngineLost, SetupError, TraceError
from tracelake.ports import ObjectStore
from tracelake.query.checked_query import CheckedQuery, Relation
from tracelake.query.collect import columns_of_schema, too_large
from tracelake.query.engine import CannotRun, InProgress, QueryResult, query_timeout
from tracelake.query.limits.engine_seconds import EngineSeconds
from tracelake.query.limits.slots import Slots, kind_of, reserved
from tracelake.query.sail.connect import ConnectSession, IncompleteError, load_grpc
from tracelake.query.sail.plans import SailPlan
from tracelake.query.sail.pool import SailPool
from tracelake.query.sail.server import SailServer
from tracelake.query.sail.tables import tables_of
from tracelake.query.sail.translate.translate import ForSail, is_too_deep, translated
from tracelake.query.sail.translate.types import NotOnSail
from tracelake.runtime.metrics import Metrics
from tracelake.settings import FlowSettings, QuerySettings

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

ANSWER_SECONDS: Final = 1.0
"""How long a refusal waits for its query to end."""
QUIET_SECONDS: Final = 0.2
QUIET_SHARE: Final = 0.2
"""A process that wanted less than this part of one core works on nothing."""
DYING_SECONDS: Final = 1.0
"""A killed process's connection is closed a moment before the process has ended."""
LATEST_SECONDS: Final = 0.5
LARGE: Final = 500
"""Parts of a query that takes long to be written for Sail: it is written in a thread, and not on the event loop."""
LOST: Final = ("UNAVAILABLE", "CANCELLED", "DEADLINE_EXCEEDED")
"""Of a call, and not of a query: only calls that every server answers at once have a deadline."""
OUT_OF_MEMORY: Final = ("Resources exhausted", "memory pool")


log = structlog.get_logger()


class SailEngine:
    """Belongs to one event loop, in the main thread."""

    def __init__(
        self,
        folder: Path,
        objects: ObjectStore,
        data_dsn: str,
        settings: QuerySettings,
        metrics: Metrics,
        *,
        spent: EngineSeconds | None = None,
        flow: FlowSettings | None = None,
        translate: Callable[[CheckedSql, Mapping[str, Relation]], ForSail] = translated,
    ) -> None:
        """`translate` writes a query so that Sail gives the values that Spark gives."""
        self._dsn = data_dsn
        self._translate = translate
        self._spent = spent or EngineSeconds(settings.engine_seconds)
        self._settings = settings
        self._kept = reserved(settings, flow or FlowSettings())
        self._metrics = metrics
        self._pool = SailPool(folder, objects, settings, metrics)
        self._slots: defaultdict[UUID, Slots] = defaultdict(self._new_slots)
        self._again: defaultdict[UUID, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._threads = ThreadPoolExecutor(settings.sail_concurrency * settings.sail_processes, "sail")
        self._ending: set[asyncio.Task[None]] = set()

    async def remove_leftovers(self) -> None:
        await self._pool.remove_leftovers()

    async def run(self, query: CheckedQuery) -> QueryResult:
        self._spent.check(query.caller.org_id, query.caller.limits.query_seconds)
        try:
            async with asyncio.timeout(query.answer_within):
                return await self._run_twice(query, await self._written(query))
        except TimeoutError:
            raise query_timeout(query) from None

    def in_progress(self, state: InProgress) -> int:
        return sum(slots.waiting if state == "waiting" else slots.running for slots in self._slots.values())

    async def close(self) -> None:
        await self._pool.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _written(self, query: CheckedQuery) -> ForSail | None:
        """Return the query for Sail, before it takes a slot or a process; None where columns are in Postgres."""
        if any(relation.hot for relation in query.relations.values()):
            return None
        write = partial(self._translate, query.checked, query.relations)
        is_large = sum(1 for _ in islice(query.checked.tree.walk(), LARGE + 1)) > LARGE
        try:
            return await asyncio.to_thread(write) if is_large else write()
        except NotOnSail as error:
            raise CannotRun(error.reason) from None

    async def _run_twice(self, query: CheckedQuery, written: ForSail | None) -> QueryResult:
        """Run it, and once more if its engine was lost.

        Which of several queries ended the engine is not known. So they run one after the other: one that ends it again
        affects none of the others. One that ran for long is the likelier cause, and comes later.
        """
        began = time.monotonic()
        try:
            return await self._run(query, written, query.seconds)
        except EngineLost:
            ran = time.monotonic() - began
        await asyncio.sleep(min(LATEST_SECONDS, ran / 10))
        try:
            async with asyncio.timeout(began + query.seconds - time.monotonic()):
                await self._again[query.caller.org_id].acquire()
        except TimeoutError:
            raise query_timeout(query) from None
        try:
            return await self._run(query, written, max(0.0, began + query.seconds - time.monotonic()))
        finally:
            self._again[query.caller.org_id].release()

    async def _run(self, query: CheckedQuery, written: ForSail | None, seconds: float) -> QueryResult:
        kind = kind_of(query.caller)
        slots = self._slots[query.caller.org_id]
        await slots.take(kind)
        give_back = partial(slots.give_back, kind)
        try:
            server = await self._take(query.caller.org_id)
        except BaseException:
            give_back()
            raise
        session = ConnectSession(server.client)
        work = partial(copy_context().run, self._answer, server, session, query, written)
        thread = asyncio.get_running_loop().run_in_executor(self._threads, work)
        over = asyncio.Event()
        began = time.monotonic()
        ended = asyncio.create_task(self._until_ended(server, session, thread, over))
        ended.add_done_callback(lambda _: give_back())
        charge = partial(self._spent.charge, own=query.caller.limits.query_seconds)
        ended.add_done_callback(lambda _: charge(query.caller.org_id, time.monotonic() - began))
        self._ending.add(ended)
        ended.add_done_callback(self._ending.discard)
        try:
            return await asyncio.wait_for(asyncio.shield(thread), seconds)
        except TimeoutError:
            raise query_timeout(query) from None
        except (EngineLost, CannotRun) as error:
            raise await self._error_for(server, error) from None
        finally:
            over.set()
            await asyncio.wait({ended}, timeout=ANSWER_SECONDS)

    async def _take(self, org_id: UUID) -> SailServer:
        try:
            return await self._pool.take(org_id)
        except SetupError:
            raise CannotRun("not_started") from None

    async def _until_ended(
        self, server: SailServer, session: ConnectSession, thread: asyncio.Future[Any], over: asyncio.Event
    ) -> None:
        """Return when no core works for the query."""
        try:
            waiting: set[asyncio.Future[Any]] = {thread, asyncio.ensure_future(over.wait())}
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if not thread.done():
                await asyncio.to_thread(session.cancel)
                if server.running > 1 or not await self._is_quiet(server, thread):
                    self._metrics.query_engines_lost.labels(str(server.org_id), "stuck").inc()
                    await server.end()
            await asyncio.wait({thread})
            thread.exception()  # the caller may be gone, so the exception is retrieved here
            over.set()
        finally:
            self._pool.give_back(server)

    async def _is_quiet(self, server: SailServer, thread: asyncio.Future[Any]) -> bool:
        """Whether the interrupted query has ended in the process too, in which no other runs."""
        ends = time.monotonic() + self._settings.stuck_seconds
        while time.monotonic() < ends and server.alive:
            before = server.wanted_seconds
            await asyncio.sleep(QUIET_SECONDS)
            if thread.done() and server.wanted_seconds - before < QUIET_SHARE * QUIET_SECONDS:
                return await asyncio.to_thread(server.client.answers, ANSWER_SECONDS)  # one that was stopped is quiet
        return False

    async def _error_for(self, server: SailServer, error: Exception) -> Exception:
        """Return that the engine was lost, if it ended during the query."""
        if isinstance(error, EngineLost):
            with suppress(TimeoutError):
                await asyncio.wait_for(server.until_ended(), DYING_SECONDS)
        if server.alive and isinstance(error, CannotRun):
            return error
        reason = "memory" if server.over_memory else "stuck" if server.alive else "ended"
        self._metrics.query_engines_lost.labels(str(server.org_id), reason).inc()
        await server.end()
        return _engine_lost(self._settings.sail_memory_mb if server.over_memory else None)

    def _answer(
        self, server: SailServer, session: ConnectSession, query: CheckedQuery, written: ForSail | None
    ) -> QueryResult:
        """Run the query; called in its thread."""
        import pyarrow as pa

        grpc = load_grpc()

        def write(relations: Mapping[str, Relation]) -> None:
            nonlocal written
            written = self._translate(query.checked, relations)

        try:
            made = tables_of(query, server.files, self._dsn, settings=self._settings, looked_up=write)
            with _opened(session), made as tables:
                assert written is not None  # noqa: S101 - of a query with hot tables, since they were looked up
                return _of_types(self._rows(session, query, written.checked, tables), written.types)
        except grpc.RpcError as error:
            raise self._translated(error) from None
        except NotOnSail as error:
            raise CannotRun(error.reason) from None
        except IncompleteError:
            raise CannotRun("failed") from None
        except (TraceError, CannotRun):
            raise
        except ValueError as error:
            if isinstance(error, pa.ArrowInvalid):
                raise CannotRun("failed") from None
            raise _engine_lost() from None  # the channel was closed, because the process was ended
        except Exception as error:  # noqa: BLE001 - whatever it sent, it is no answer
            if is_too_deep(error):
                raise CannotRun("syntax") from None
            log.warning(
                "Sail gave no answer that can be read", kind=type(error).__name__
            )  # its text may be the query's
            raise CannotRun("failed") from None

    def _rows(
        self, session: ConnectSession, query: CheckedQuery, written: CheckedSql, tables: Mapping[str, SailPlan]
    ) -> QueryResult:
        import pyarrow as pa

        names = {table: f"v_{uuid4().hex}" for table in tables}  # none that the query could have for something else
        sent = {names[table]: plan for table, plan in tables.items()}
        schema, parts, size = None, [], 0
        for part in session.rows(written.render(names), sent, query.max_rows + 1):
            if isinstance(part, pa.Table):
                size += part.nbytes
                if size > self._settings.max_bytes:
                    session.cancel()
                    raise too_large(self._settings.max_bytes)
                parts.append(part)
            else:
                schema = part
        if schema is None:
            raise CannotRun("failed")
        columns, table = columns_of_schema(schema), _as_spark_gives_it(schema, parts)
        truncated = table.num_rows > query.max_rows
        rows = table.slice(0, query.max_rows) if truncated else table
        return QueryResult(columns, rows, truncated, engine="sail")

    def _translated(self, error: Any) -> Exception:
        """What Sail says about a query is not repeated: Spark runs it, and says it in its own words."""
        grpc = load_grpc()
        if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:  # a message larger than we receive
            return too_large(self._settings.max_bytes)
        if error.code().name in LOST:
            return _engine_lost()
        details = error.details() or ""
        return CannotRun("memory" if any(words in details for words in OUT_OF_MEMORY) else "failed")

    def _new_slots(self) -> Slots:
        limits = self._settings
        return Slots(limits.sail_concurrency, limits.waiting, limits.wait_seconds, kept=self._kept)


def _of_types(result: QueryResult, types: list[str] | None) -> QueryResult:
    """The result, if its columns have the types that Spark's would have."""
    if types is not None and [column.type for column in result.columns] != types:
        raise CannotRun("types")
    return result


def _as_spark_gives_it(schema: StructType, tables: list[pa.Table]) -> pa.Table:
    """Return the rows in Spark's Arrow types: Sail may use views of texts, or other names of a time zone."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    wanted = to_arrow_schema(schema, timezone="UTC")
    try:
        return pa.concat_tables([table.cast(wanted) for table in tables]) if tables else wanted.empty_table()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError):
        raise CannotRun("types") from None


@contextmanager
def _opened(session: ConnectSession) -> Iterator[None]:
    session.open()
    try:
        yield
    finally:
        session.close()


def _engine_lost(memory_mb: int | None = None) -> EngineLost:
    why = "" if memory_mb is None else f", which took more than {memory_mb} MB"
    return EngineLost(f"the Query service lost the organisation's engine{why}", hint="read less, or retry in a moment")
