"""Sends audit rows to the Dispatcher, from a file: a killed process loses none, and ids make a repeated row harmless.

A row is in the file before its answer is sent. `send` renames the file, sends its rows and deletes it; files of a
previous process are sent too. While the Dispatcher is unavailable, rows stay in their files.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Final
from uuid import uuid4

import msgspec
import structlog

from tracelake.errors import DiskFull, TraceError, Unavailable
from tracelake.runtime.disk import NO_SPACE
from tracelake.wire.client import DispatcherClient
from tracelake.wire.internal.queries import MAX_AUDIT, AuditRow

CURRENT: Final = "current.jsonl"
BEAT_SECONDS: Final = 1.0
log = structlog.get_logger()


class Audit:
    """Belongs to one event loop; the folder to one process at a time."""

    def __init__(self, folder: Path, dispatcher: DispatcherClient) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folder = folder
        self._dispatcher = dispatcher
        self._new = asyncio.Event()

    def note(self, row: AuditRow) -> None:
        """Append the row in one write: after a kill the line is whole or missing. Without it, the query is refused."""
        try:
            with (self._folder / CURRENT).open("ab", buffering=0) as file:
                _append(file, msgspec.json.encode(row) + b"\n")
        except OSError as error:
            if error.errno in NO_SPACE:
                raise DiskFull.of("the query audit", str(self._folder)) from None
            raise Unavailable(f"the audit cannot be written ({error.strerror}), so queries are refused") from None
        self._new.set()

    async def run(self) -> None:
        """Send until it is cancelled; rows that come within a second are sent together."""
        self._new.set()
        while True:
            await self._new.wait()
            self._new.clear()
            if not await self.send_all():
                self._new.set()
            await asyncio.sleep(BEAT_SECONDS)

    async def send_all(self) -> bool:
        """Send all rows. Returns whether the Dispatcher took all of them."""
        self._rename_current()
        for file in sorted(self._folder.glob("*.jsonl")):
            if file.name == CURRENT:
                continue
            try:
                await self._send(read_rows(file))
            except Unavailable as error:
                log.info("audit rows wait for the Dispatcher", because=error.message)
                return False
            except TraceError as error:  # a retry would be refused too: the file stays for an administrator
                log.error("audit rows were refused", file=str(file), **error.as_dict())  # noqa: TRY400
                file.rename(file.with_suffix(".refused"))
                continue
            file.unlink(missing_ok=True)
        return True

    def _rename_current(self) -> None:
        with suppress(FileNotFoundError):
            (self._folder / CURRENT).rename(self._folder / f"{uuid4()}.jsonl")

    async def _send(self, rows: Sequence[AuditRow]) -> None:
        for at in range(0, len(rows), MAX_AUDIT):
            await self._dispatcher.audit(rows[at : at + MAX_AUDIT])


def _append(file: FileIO, line: bytes) -> None:
    """On a disk with room for a part of the line, the kernel writes that part: it is removed again."""
    end = file.tell()
    if file.write(line) < len(line):
        file.truncate(end)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def read_rows(file: Path) -> list[AuditRow]:
    """Return the rows of a file. A line that cannot be decoded was cut by a kill on a full disk, and is skipped."""
    rows = []
    for line in file.read_bytes().splitlines():
        with suppress(msgspec.DecodeError):
            rows.append(msgspec.json.decode(line, type=AuditRow))
    return rows
