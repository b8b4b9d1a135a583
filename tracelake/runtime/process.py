"""The frame of every long-running process: logs, signals, and notifications to its supervisor.

These use systemd's notify protocol (a datagram to `$NOTIFY_SOCKET`: READY=1, STATUS=..., WATCHDOG=1), so the same
process runs under `trace up`, under systemd, or without a supervisor.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import resource
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Final, NoReturn

import structlog
import uvloop

from tracelake.errors import TraceError, Unavailable
from tracelake.runtime.crash_points import arm
from tracelake.runtime.logs import configure_logging
from tracelake.runtime.metrics import Metrics
from tracelake.runtime.metrics_listener import serve_metrics
from tracelake.runtime.redact import redactor
from tracelake.runtime.retry import retry_with_backoff
from tracelake.runtime.tracing import start_tracing, stop_tracing
from tracelake.settings import Settings

log = structlog.get_logger()

PROCESSES: Final = ("dispatcher", "query", "worker", "sink", "gateway", "scheduler", "delivery", "runner")
"""In the order in which `trace up` starts them; its `--without` takes these names."""
PR_SET_DUMPABLE: Final = 4
GAVE_UP: Final = 70
"""The exit code of a process that found itself stuck (`EX_SOFTWARE` of sysexits)."""
COLLECT_AFTER = (20_000, 20, 20)
"""Python collects garbage after so many new objects. Its default of 700 is fewer than a batch of tasks makes."""


class Process:
    """What a process's main function gets: its settings, its stop event, and its supervisor."""

    def __init__(
        self, name: str, settings: Settings, notify_socket: str | None, watchdog_seconds: float | None
    ) -> None:
        self.name = name
        self.settings = settings
        self.metrics = Metrics()
        self.stop = asyncio.Event()
        self._notify_socket = notify_socket
        self._watchdog_seconds = watchdog_seconds

    def ready(self, status: str) -> None:
        """Everything is imported and open: these objects stay, so the garbage collector need not look at them again."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(*COLLECT_AFTER)
        log.info("ready", status=status)
        self._notify(f"READY=1\nSTATUS={status}")

    def status(self, status: str) -> None:
        self._notify(f"STATUS={status}")

    def give_up(self, reason: str) -> NoReturn:
        """Ends at once, without the shutdown, which may wait for what is stuck; the supervisor starts another."""
        log.error("ended", because=reason)
        self._notify(f"STATUS={reason}")
        os._exit(GAVE_UP)

    async def watchdog(self) -> None:
        """Notifies from the event loop itself: if the loop hangs, so does this, and the supervisor notices."""
        if self._watchdog_seconds is None:
            return
        while True:
            self._notify("WATCHDOG=1")
            await asyncio.sleep(self._watchdog_seconds / 3)

    def _notify(self, message: str) -> None:
        if self._notify_socket is None:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel, suppress(OSError):
            channel.sendto(message.encode(), self._notify_socket)


def run_process(name: str, settings: Settings, main: Callable[[Process], Awaitable[None]]) -> int:
    """Run `main` until it returns or a signal asks it to stop; the result is the exit code."""
    gc.freeze()  # all that is imported by now, without a look for garbage in it
    gc.enable()  # which `trace` leaves off for as long as it imports
    configure_logging(name, settings.log, redactor(settings))
    _allow_open_files()
    arm(settings.faults.point, settings.faults.nth, settings.faults.how)
    microseconds = os.environ.pop("WATCHDOG_USEC", None)
    process_socket = os.environ.pop("NOTIFY_SOCKET", None)  # child processes must not notify instead

    async def framed() -> None:
        process = Process(name, settings, process_socket, int(microseconds) / 1e6 if microseconds else None)
        _stop_on_signals(process.stop)
        watchdog = asyncio.create_task(process.watchdog())
        try:
            with serve_metrics(process.metrics, settings.metrics.port):
                await main(process)
        finally:
            watchdog.cancel()

    try:
        start_tracing(name, settings.tracing)
        uvloop.run(framed())
    except TraceError as refusal:
        _say_refused(refusal)
        return 1
    except ExceptionGroup as several:
        refused, others = several.split(TraceError)
        for leaf in _leaves(refused):
            _say_refused(leaf)
        if others is not None:
            raise others from None
        return 1
    finally:
        stop_tracing()
    log.info("stopped")
    return 0


def hide_memory() -> None:
    """Makes `/proc/<this process>/{environ,mem,...}` unreadable to other processes of the same user."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def _allow_open_files() -> None:
    """As many as the system allows: a connection is one, and the usual 1024 are fewer than callers may open."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # where there is no limit at all, the kernel's own may be lower
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _say_refused(refusal: Exception) -> None:
    if isinstance(refusal, TraceError):
        log.error("ended", **refusal.as_dict())


def _leaves(group: ExceptionGroup[Exception] | None) -> Iterator[Exception]:
    for exception in group.exceptions if group else ():
        if isinstance(exception, ExceptionGroup):
            yield from _leaves(exception)
        else:
            yield exception


async def wait_for_service(process: Process, name: str, call: Callable[[], Awaitable[None]]) -> None:
    """Waits until a service that this process needs answers, or until the process is to stop."""

    def show(outage: Exception) -> None:
        process.status(f"waits for {name}")
        log.info("waits", what=name, because=str(outage))

    with suppress(Unavailable):  # only when it is to stop
        await retry_with_backoff(call, process.stop, on_outage=show)


def _stop_on_signals(stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()

    def asked() -> None:
        if stop.is_set():  # the second signal
            os._exit(130)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked)
