"""Sends the output of a function to the Dispatcher, line by line: bounded, in order, and while it runs.

A line that is refused (the attempt has ended, or has its maximum of lines) is dropped.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final, Literal

import structlog

from tracelake.errors import TraceError
from tracelake.settings import UdfSettings
from tracelake.wire.client import TaskClient
from tracelake.wire.task.lifecycle import Invocation, LogLine, LogsRequest

log = structlog.get_logger()

CHUNK: Final = 65536
LINE_CHARS: Final = 8_000
Level = Literal["debug", "info", "warning", "error"]
LEVELS: Final[Mapping[str, Level]] = {
    "DEBUG": "debug",
    "INFO": "info",
    "WARNING": "warning",
    "ERROR": "error",
    "CRITICAL": "error",
}
AT_ONCE: Final = 500
SOON_SECONDS: Final = 0.25
SLOWLY_SECONDS: Final = 0.02
"""The pause between reads of output that is discarded: it slows down a function that writes too much."""
START_LINES_KEPT: Final = 4_000
MOST_AT_THE_END: Final = 16
"""Chunks that are read after a function has answered; a pipe holds one."""


class Lines:
    """The lines of one invocation."""

    def __init__(self, invocation: Invocation, tasks: TaskClient, settings: UdfSettings) -> None:
        self._invocation = invocation
        self._tasks = tasks
        self._lines_left = settings.log_lines
        self._bytes_left = settings.log_bytes
        self._waiting: list[LogLine] = []
        self._sent = 0
        self._dropped = 0
        self._refused = False
        self._turn = asyncio.Lock()
        self._soon: asyncio.Task[None] | None = None

    @property
    def full(self) -> bool:
        return self._lines_left <= 0 or self._bytes_left <= 0

    def add(self, line: bytes) -> None:
        if self.full or self._refused:
            self._dropped += 1
            return
        self._lines_left -= 1
        self._bytes_left -= len(line)
        text = line[: LINE_CHARS * 4].decode(errors="replace").replace("\0", "\ufffd")[:LINE_CHARS]
        level, text = _level(text)
        self._waiting.append(LogLine(at=datetime.now(UTC), text=text, level=level))
        if self._soon is None or self._soon.done():
            self._soon = asyncio.create_task(self._send_soon())

    async def send(self) -> None:
        """Sends all waiting lines."""
        async with self._turn:
            while self._waiting:
                batch, self._waiting = self._waiting[:AT_ONCE], self._waiting[AT_ONCE:]
                await self._post(batch)

    async def close(self) -> None:
        if self._dropped:
            text = f"... {self._dropped} more lines or pieces were dropped"
            self._waiting.append(LogLine(at=datetime.now(UTC), text=text, level="warning"))
        await self.send()
        if self._soon is not None:
            self._soon.cancel()  # not before: the lines that it is sending would be lost
            with suppress(asyncio.CancelledError):
                await self._soon

    async def _send_soon(self) -> None:
        await asyncio.sleep(SOON_SECONDS)
        await self.send()

    async def _post(self, batch: list[LogLine]) -> None:
        if self._refused:
            return
        fence: dict[str, Any] = {
            "task_id": self._invocation.task_id,
            "attempt": self._invocation.attempt,
            "lease_token": self._invocation.lease_token,
        }
        try:
            answer = await self._tasks.logs(
                self._invocation.capability_token, LogsRequest(**fence, lines=batch, first=self._sent)
            )
        except TraceError as refusal:
            log.debug("lines dropped", **refusal.as_dict())
            self._refused = True
        else:
            self._refused = answer.full
            self._sent += len(batch)


def _level(text: str) -> tuple[Level, str]:
    """Reads the level that the SDK's logger and most others put before a line."""
    word, _, rest = text.partition(" ")
    found = LEVELS.get(word.rstrip(":"))
    return ("info", text) if found is None else (found, rest)


class SandboxOutput:
    """Reads the pipe of one sandbox. Lines belong to the current invocation; earlier ones are kept for an error."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._rest = b""
        self._start = b""
        self._lines: Lines | None = None
        self._loop = asyncio.get_running_loop()
        self._open = True
        self._loop.add_reader(file, self._readable)

    @property
    def start_output(self) -> str:
        return self._start.decode(errors="replace")

    def begin(self, lines: Lines) -> None:
        self.drain()
        self._rest = b""
        self._lines = lines

    def end(self) -> None:
        self.drain()
        if self._lines is not None and self._rest:
            self._lines.add(self._rest)
        self._rest, self._lines = b"", None

    def drain(self) -> None:
        """Reads what is in the pipe now."""
        for _ in range(MOST_AT_THE_END):
            if not self._open or not self._read():
                return

    def close(self) -> None:
        if self._open:
            self._open = False
            self._loop.remove_reader(self._file)
            os.close(self._file)

    def _readable(self) -> None:
        self._read()
        if self._open and (self._lines is None or self._lines.full):
            self._loop.remove_reader(self._file)
            self._loop.call_later(SLOWLY_SECONDS, self._again)

    def _again(self) -> None:
        if self._open:
            self._loop.add_reader(self._file, self._readable)

    def _read(self) -> bool:
        try:
            data = os.read(self._file, CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self.close()
            return False
        self._keep(data)
        return True

    def _keep(self, data: bytes) -> None:
        if self._lines is None:
            self._start = (self._start + data)[-START_LINES_KEPT:]
            return
        if self._lines.full:  # not split into lines
            self._lines.add(data)
            self._rest = b""
            return
        *whole, rest = (self._rest + data).split(b"\n")
        for line in whole:
            self._lines.add(line)
        if len(rest) > CHUNK:  # a line without end
            self._lines.add(rest)
            rest = b""
        self._rest = rest
