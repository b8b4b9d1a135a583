"""Tells the Dispatcher what was asked: from a file, so that a kill loses nothing, and with ids, so that twice is once.

A row is in the file before its answer goes out. The teller turns the file over, sends what is in it and removes it;
what a former process left is sent too. While the Dispatcher is away rows stay where they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final
from uuid import uuid4

import msgspec
import structlog

from tracelake.errors import TraceError, Unavailable
from tracelake.wire.client import DispatcherClient
from tracelake.wire.query_messages import MAX_AUDIT, AuditRow

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
        """In one write: a kill leaves the line whole, or out."""
        try:
            with (self._folder / CURRENT).open("ab", buffering=0) as file:
                file.write(msgspec.json.encode(row) + b"\n")
        except OSError as full:
            raise Unavailable(f"the audit cannot be written ({full.strerror}), so nothing is answered") from None
        self._new.set()

    async def run(self) -> None:
        """Until it is canceled: together what comes within a beat."""
        self._new.set()
        while True:
            await self._new.wait()
            self._new.clear()
            if not await self.tell():
                self._new.set()
            await asyncio.sleep(BEAT_SECONDS)

    async def tell(self) -> bool:
        """All that is there; whether all of it was heard."""
        self._turn_over()
        for file in sorted(self._folder.glob("*.jsonl")):
            if file.name == CURRENT:
                continue
            try:
                await self._send(rows_in(file))
            except Unavailable as away:
                log.info("the audit waits", because=away.message)
                return False
            except TraceError as refused:  # it will be refused tomorrow too: kept for people, out of the way
                log.error("the audit was refused", file=str(file), **refused.as_dict())  # noqa: TRY400
                file.rename(file.with_suffix(".refused"))
                continue
            file.unlink(missing_ok=True)
        return True

    def _turn_over(self) -> None:
        with suppress(FileNotFoundError):
            (self._folder / CURRENT).rename(self._folder / f"{uuid4()}.jsonl")

    async def _send(self, rows: Sequence[AuditRow]) -> None:
        for at in range(0, len(rows), MAX_AUDIT):
            await self._dispatcher.audit(rows[at : at + MAX_AUDIT])


def rows_in(file: Path) -> list[AuditRow]:
    """A line that cannot be read is one that was cut by a full disk; the others count."""
    found = []
    for line in file.read_bytes().splitlines():
        with suppress(msgspec.DecodeError):
            found.append(msgspec.json.decode(line, type=AuditRow))
    return found
