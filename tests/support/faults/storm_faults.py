"""What a storm does to a whole system: kill, freeze, cut, fill a disk, fail a node. A seed decides what, and when."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Event
from typing import Final

from tests.support.faults.backends import fill
from tests.support.faults.postgres_proxy import STATEMENTS, When
from tests.support.faults.storm_checks import Line
from tests.support.faults.storm_system import WholeSystem
from tracelake.store.queries import queries

PROCESSES: Final = ("worker", "dispatcher", "sink", "query", "gateway", "delivery", "runner", "postgres-data")
WITH_JAVA: Final = ("worker", "query", "sink")
HOT: Final = ("trigger", "claim", "heartbeat", "complete", "complete with outputs", "route events", "keep entries")
FROZEN_SECONDS: Final = (0.5, 4.0)
CUT_SECONDS: Final = (0.2, 2.0)
FULL_SECONDS: Final = (1.0, 4.0)
PAUSE_SECONDS: Final = (0.4, 2.4)
Fault = tuple[str, Callable[[], None]]
"""The line in the log, and the fault."""


class Storm:
    """Strikes one fault after the other; some last while the next ones begin."""

    def __init__(self, system: WholeSystem, seed: int) -> None:
        self._system = system
        self._random = random.Random(seed)  # noqa: S311 - the same storm again
        self.struck: Counter[str] = Counter()
        """How often each kind was."""
        self.log: list[str] = []
        """Each fault, with the second in which it struck."""
        self._kinds: dict[str, Callable[[], Fault]] = {
            "kill": self._kill,
            "kill of a JVM": self._kill_java,
            "freeze": self._freeze,
            "cut at a COMMIT": self._cut_at_commit,
            "cut of all connections": self._cut_all,
            "failing node": self._fail_node,
        }
        for name in system.disks:
            self._kinds[f"full disk of {name}"] = partial(self._fill_disk, name)
        if not system.disks:
            self.log.append("          no full disk: only root mounts a small one")

    def rage(self, seconds: float) -> None:
        """Each kind once, in any order, and then any of them until the time is over."""
        began, first = time.monotonic(), self._random.sample(sorted(self._kinds), len(self._kinds))
        lasting: list[Future[None]] = []
        with ThreadPoolExecutor(8) as threads, _mining(self._system, self._random.randrange(2**32)):
            while first or time.monotonic() < began + seconds:
                kind = first.pop() if first else self._random.choice(sorted(self._kinds))
                said, strike = self._kinds[kind]()
                self.struck[kind] += 1
                self.log.append(f"{time.monotonic() - began:6.1f} s  {said}")
                lasting.append(threads.submit(strike))
                time.sleep(self._random.uniform(*PAUSE_SECONDS))
        for fault in lasting:
            fault.result()
        self._system.loop.do(_aim(self._system, None, "before"))
        self._system.devchain.clear()

    def line(self) -> Line:
        return Line("kinds of fault that struck", str(len(self._kinds)), str(len(self.struck)))

    def _kill(self) -> Fault:
        name = self._random.choice(PROCESSES)
        return f"kill -9 {name}", lambda: _send(_leader(self._system, name), signal.SIGKILL)

    def _kill_java(self) -> Fault:
        name = self._random.choice(WITH_JAVA)
        return f"kill -9 the JVM of {name}", lambda: _send(_java(self._system, name), signal.SIGKILL)

    def _freeze(self) -> Fault:
        name, seconds = self._random.choice(PROCESSES), self._random.uniform(*FROZEN_SECONDS)
        return f"freeze {name} for {seconds:.1f} s", partial(_freeze, self._system, name, seconds)

    def _cut_at_commit(self) -> Fault:
        name = self._random.choice(HOT)
        when: When = self._random.choice(("before", "after"))
        aim = partial(_aim, self._system, name, when)
        return f"cut {when} the next COMMIT of: {name}", lambda: self._system.loop.do(aim())

    def _cut_all(self) -> Fault:
        seconds = self._random.uniform(*CUT_SECONDS)
        cut = partial(self._system.proxy.cut_all, seconds)
        return f"cut all connections to state Postgres for {seconds:.1f} s", lambda: self._system.loop.do(cut())

    def _fill_disk(self, name: str) -> Fault:
        seconds = self._random.uniform(*FULL_SECONDS)
        return f"full disk of {name} for {seconds:.1f} s", partial(_fill, self._system.disks[name], seconds)

    def _fail_node(self) -> Fault:
        kind = self._random.choice(("drop", "truncate", "error", "throttle"))
        value = 500.0 if kind == "error" else 1.0
        return f"node: {kind}", partial(self._system.devchain.fault, kind, times=5, value=value)


def _leader(system: WholeSystem, name: str) -> list[int]:
    pid = system.running.process(name)["pid"]
    return [int(pid)] if pid else []


def _java(system: WholeSystem, name: str) -> list[int]:
    return [pid for pid in system.family(name) if _program(pid) == "java"]


def _freeze(system: WholeSystem, name: str, seconds: float) -> None:
    with _handles(system.family(name)) as handles:
        _signal(handles, signal.SIGSTOP)
        time.sleep(seconds)
        _signal(handles, signal.SIGCONT)


async def _aim(system: WholeSystem, name: str | None, when: When) -> None:
    if name is None:
        system.proxy.target = None
    else:
        file, statement = STATEMENTS[name]
        system.proxy.aim(queries(file)[statement], when)


def _fill(disk: Path, seconds: float) -> None:
    ballast = fill(disk)
    time.sleep(seconds)
    ballast.unlink(missing_ok=True)


@contextmanager
def _mining(system: WholeSystem, seed: int) -> Iterator[None]:
    """The chain grows, and is reorganised, as long as the block lasts."""
    choice, stop = random.Random(seed), Event()  # noqa: S311 - the same blocks again

    def mine() -> None:
        while not stop.wait(0.5):
            system.devchain.mine(choice.randrange(1, 5))
            if choice.random() < 0.2:
                system.devchain.reorg(choice.randrange(1, 8))

    with ThreadPoolExecutor(1) as miner:
        mined = miner.submit(mine)
        try:
            yield
        finally:
            stop.set()
        mined.result()


def _send(pids: list[int], number: signal.Signals) -> None:
    with _handles(pids) as handles:
        _signal(handles, number)


@contextmanager
def _handles(pids: list[int]) -> Iterator[list[int]]:
    """Of the processes themselves: a number that is another's by then is not struck."""
    handles: list[int] = []
    for pid in pids:
        with suppress(ProcessLookupError):
            handles.append(os.pidfd_open(pid))
    try:
        yield handles
    finally:
        for handle in handles:
            os.close(handle)


def _signal(handles: list[int], number: signal.Signals) -> None:
    for handle in handles:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, number)


def _program(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""
