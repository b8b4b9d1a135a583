"""Starts Dispatchers and workers as processes of their own, without the second that Python takes to import them.

A program: it imports once and forks for each line on standard input, a JSON object, and writes the child's pid. A
child is what `trace dispatcher`, `worker`, `sink` and `delivery` are, on the same settings document; only that worker
and sink have no Spark session, and that pauses are shorter (they only decide how often loops look).
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pyarrow as pa

from tests.support.dispatcher.control import PULL, WORKS
from tests.support.faults.backends import DeadlyObjects, Faults, disturbed
from tests.support.one_connection import one_connection_each
from tests.support.operators import register
from tests.support.spark.session import a_session
from tests.support.waiting import until
from tracelake.delivery import process as delivery_process
from tracelake.dispatcher import process as dispatcher_process
from tracelake.dispatcher.maintenance import loop, rotate_keys
from tracelake.domain.flow.tiers import BUFFER_QUEUE
from tracelake.domain.task import Backoff
from tracelake.gateway import process as gateway_process
from tracelake.operators.api.context import Resources, TaskApi
from tracelake.operators.api.outcome import Outcome
from tracelake.ports import Invoked, ObjectStore
from tracelake.runtime import retry
from tracelake.runtime.process import Process, run_process
from tracelake.scheduler import process as scheduler_process
from tracelake.settings import EndpointSettings, Settings, settings_from_document
from tracelake.sink import drain
from tracelake.sink.process import limits_of
from tracelake.sink.write import Writer
from tracelake.store.db import open_pool, required
from tracelake.store.pool import BoundedPool
from tracelake.wire.client import dispatcher_client, task_client
from tracelake.wire.task.lifecycle import Claimed, Invocation, TaskPayload
from tracelake.wire.task.outputs import CompleteRequest
from tracelake.wiring import make_objects, open_queue, open_signer
from tracelake.worker import wrapper
from tracelake.worker.process import resources
from tracelake.worker.run_task import Finished, Runner, run_pure

PR_SET_PDEATHSIG = 1
FOREVER_SECONDS = 24 * 3600.0
SLOW_EVERY = 8
SLOW_SECONDS = 1.3
"""Longer than a heartbeat of the test's jobs, so that some tasks beat."""


def main() -> None:
    # Children collect garbage when they are ready: else each would go through, and copy, all that was imported.
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel collects the children; the parent waits by a pidfd
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _live(json.loads(line))
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()


def _live(asked: dict[str, Any]) -> None:
    code = 1
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        log = os.open(asked["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for number, handle in ((0, os.open(os.devnull, os.O_RDONLY)), (1, log), (2, log)):
            os.dup2(handle, number)
        _hurry()
        _lasting.enter_context(one_connection_each())
        if asked["clock"]:
            _step(Path(asked["clock"]))
        settings = settings_from_document(json.dumps(asked["settings"]))
        hurried = settings.dispatcher.model_copy(update={"beat_seconds": 0.25})
        settings = settings.model_copy(update={"dispatcher": hurried})
        faults = Faults(**asked["faults"]) if asked["faults"] else None
        make = {
            "dispatcher": _dispatcher,
            "worker": _worker,
            "sink": _sink,
            "spark_sink": _spark_sink,
            "deadly_sink": _deadly_sink,
            "delivery": _delivery,
            "gateway": _gateway,
            "scheduler": _scheduler,
        }[asked["role"]]
        code = run_process(asked["role"], settings, make(faults, asked["hold"]))
    finally:
        os._exit(code)


def _hurry() -> None:
    loop.AFTER_FAILURE_SECONDS = 0.05
    rotate_keys.BEAT_SECONDS = 0.5
    for work in loop.Periodic.__subclasses__():
        work.every_seconds = 0.25
    retry.BACKOFF = Backoff(0.05, 0.05)


def _step(wrong_by: Path) -> None:
    """The wall clock of this process is wrong by what the file says now. Timers of the kernel are not."""
    right = time.time
    time.time = lambda: right() + float(wrong_by.read_text() or 0)


def _dispatcher(faults: Faults | None, hold: str | None) -> Callable[[Process], Awaitable[None]]:
    """`hold`: when there is such a file, every connection to the state database is taken and never given back."""
    if hold is not None:
        vars(dispatcher_process)["open_pool"] = _leaking(open_pool, Path(hold))

    async def run(process: Process) -> None:
        register("pull", PULL)
        register("works", WORKS)
        async with open_queue(process.settings) as queue, open_signer(process.settings) as signer:
            objects, invoker = make_objects(process.settings), _Function(process.settings)
            await dispatcher_process.main(process, disturbed(queue, faults), signer, objects, invoker=invoker)

    return run


def _leaking(plain: Any, sign: Path) -> Any:
    @asynccontextmanager
    async def opened(*args: Any, **options: Any) -> AsyncIterator[BoundedPool]:
        async with plain(*args, **options) as pool:
            leaking = asyncio.create_task(_leak(pool, sign))
            yield pool
            leaking.cancel()

    return opened


async def _leak(pool: BoundedPool, sign: Path) -> None:
    await until(sign.exists, f"{sign} exists", seconds=FOREVER_SECONDS)
    while True:  # those that others hold for good are never free
        connection = await pool.acquire(timeout=FOREVER_SECONDS)
        await connection.execute("BEGIN")


class _Function:
    """A function that runs in this process and reports at the task API; some first attempts never report."""

    def __init__(self, settings: Settings) -> None:
        url = f"https://127.0.0.1:{settings.dispatcher.task_port}"
        self._settings = settings.model_copy(update={"endpoints": EndpointSettings(dispatcher_task=url)})

    async def invoke(self, payload: bytes, *, org: UUID, timeout_seconds: float) -> Invoked:
        del org, timeout_seconds
        invocation = msgspec.json.decode(payload, type=Invocation)
        if invocation.attempt == 1 and (invocation.scope.cursor or 0) % 3 == 1:
            return Invoked()
        fence = {"task_id": invocation.task_id, "attempt": invocation.attempt, "lease_token": invocation.lease_token}
        done = CompleteRequest(status="Completed", events=list(run_pure(invocation).events), **fence)  # type: ignore[arg-type]
        async with task_client(self._settings) as tasks:
            await tasks.complete(invocation.capability_token, done)
        return Invoked()

    async def places(self) -> None:
        """Unknown."""


def _worker(faults: Faults | None, hold: str | None) -> Callable[[Process], Awaitable[None]]:
    async def run(process: Process) -> None:
        settings = process.settings
        async with (
            open_queue(settings) as queue,
            dispatcher_client(settings) as dispatcher,
            task_client(settings) as tasks,
        ):
            made = wrapper.Wrapper(
                queue=disturbed(queue, faults),
                queue_name=f"tasks-{settings.worker.runtime}",
                dispatcher=dispatcher,
                tasks=tasks,
                runner=_Runner(
                    make_objects(settings),
                    resources(settings) if settings.data.dsn else Resources(),
                    pure=_held(Path(hold)) if hold else _operator,
                ),
                worker_id=f"worker {os.getpid()}",
                concurrency=8,
            )
            process.ready("works")
            await made.work(process.stop)

    return run


def _sink(faults: Faults | None, hold: str | None) -> Callable[[Process], Awaitable[None]]:
    del hold
    return _sinking(faults, lambda _: _Here())


def _deadly_sink(faults: Faults | None, hold: str | None) -> Callable[[Process], Awaitable[None]]:
    """Killed by one batch: reading it ends the process."""
    del hold
    return _sinking(faults, lambda _: _Here(), lambda settings: DeadlyObjects(settings.home / "objects"))


def _spark_sink(faults: Faults | None, hold: str | None) -> Callable[[Process], Awaitable[None]]:
    del hold
    return _sinking(faults, lambda home: _lasting.enter_context(a_session(home)))


def _sinking(
    faults: Faults | None,
    start: Callable[[Path], Any],
    objects: Callable[[Settings], ObjectStore] = make_objects,
) -> Callable[[Process], Awaitable[None]]:
    async def run(process: Process) -> None:
        settings = process.settings
        dsn = required(settings.data.dsn, "data.dsn")
        async with open_queue(settings) as queue, dispatcher_client(settings) as dispatcher:
            spark = await asyncio.to_thread(start, settings.home)
            writer = Writer(lambda: spark, objects(settings), dsn, limits_of(settings.sink), settings.sink.max_crashes)
            writer.sweep()
            process.ready("drains")
            await drain.Sink(disturbed(queue, faults), BUFFER_QUEUE, dispatcher, writer).drain(process.stop)

    return run


_lasting = ExitStack()
"""What lasts as long as its process: a session that nobody refers to ends."""


def _delivery(faults: Faults | None, hold: str | None) -> Callable[[Process], Awaitable[None]]:
    del faults, hold
    return delivery_process.main


def _scheduler(faults: Faults | None, hold: str | None) -> Callable[[Process], Awaitable[None]]:
    del faults, hold
    return scheduler_process.main


def _gateway(faults: Faults | None, hold: str | None) -> Callable[[Process], Awaitable[None]]:
    del faults, hold
    return gateway_process.main


class _Here:
    """In the place of a Spark session: the numbers of a range, and a function over them, in this process."""

    def __init__(self, count: int = 0, made: Callable[..., Any] | None = None) -> None:
        self._count = count
        self._made = made

    def range(self, start: int, stop: int, step: int, partitions: int) -> _Here:
        del start, step, partitions
        return _Here(stop)

    def mapInArrow(self, made: Callable[..., Any], schema: str) -> _Here:  # noqa: N802 - Spark's name
        del schema
        return _Here(self._count, made)

    def collect(self) -> list[tuple[Any, ...]]:
        assert self._made is not None
        numbers = pa.RecordBatch.from_pydict({"id": list(range(self._count))})
        rows = [row for batch in self._made(iter([numbers])) for row in batch.to_pylist()]
        return [tuple(row.values()) for row in rows]


class _Runner(Runner):
    def run(self, claimed: Claimed, listener: TaskApi) -> Finished:
        if claimed.task.operator != "pull":
            return super().run(claimed, listener)
        # A source that ends at once: it is started again and again.
        fence = {"attempt": claimed.attempt, "lease_token": claimed.lease_token}
        return Finished(CompleteRequest(task_id=claimed.task.task_id, status="Completed", **fence))  # type: ignore[arg-type]


def _operator(task: TaskPayload) -> Outcome:
    if task.scope.cursor is not None and task.scope.cursor % SLOW_EVERY == 1:
        time.sleep(SLOW_SECONDS)
    return run_pure(task)


def _held(sign: Path) -> Callable[[TaskPayload], Outcome]:
    """Says that it has begun, and waits to be let go."""

    def run(task: TaskPayload) -> Outcome:
        sign.with_suffix(".begun").touch()
        while not sign.with_suffix(".go").exists():
            time.sleep(0.01)
        return run_pure(task)

    return run


if __name__ == "__main__":
    main()
