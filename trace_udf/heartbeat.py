"""Renews the lease while a function runs, and ends the function when the lease is lost or the task was canceled."""

from __future__ import annotations

import ctypes
import threading
from typing import TYPE_CHECKING, Any, Optional, Type

from trace_udf.connections import close
from trace_udf.errors import Canceled, Ended, LeaseLost, Refused

if TYPE_CHECKING:
    from trace_udf.task import Task


class Heartbeat:
    """A thread that sends heartbeats at the interval of the payload while the block runs."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._whom = threading.get_ident()
        self._over = threading.Event()
        self._turn = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="trace-heartbeat", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        with self._turn:  # an interrupt has been raised by now, or never will be
            self._over.set()

    def _run(self) -> None:
        try:
            while not self._over.wait(self._task.heartbeat_seconds):
                ended = self._beat()
                if ended is not None:
                    self._end(ended)
                    return
        finally:
            close()

    def _beat(self) -> Optional[Type[Ended]]:
        try:
            answer: Any = self._task.beat()
        except LeaseLost:
            return LeaseLost
        except Refused as refused:
            return None if refused.retryable else LeaseLost
        return Canceled if answer.get("canceled") else None

    def _end(self, ended: Type[Ended]) -> None:
        """Raised in the function's thread, at its next step; every call of the task raises it too."""
        with self._turn:
            if self._over.is_set():
                return
            self._task.ended = ended
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._whom), ctypes.py_object(ended))
