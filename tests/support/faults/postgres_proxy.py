"""Stands between a Dispatcher and Postgres, and cuts the line at the COMMIT of a chosen statement.

It reads the protocol as it passes: which prepared statement a client runs, and where its transaction ends. A statement
outside of a transaction is committed by its Sync; one inside, by the COMMIT that follows. At that message the line is
cut: `before`, and the server never sees it; or `after`, and the server has done it, but the answer never arrives.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qs, quote, urlsplit

When = Literal["before", "after"]
HEADER = 5


class Cut(Exception):
    """The line is cut here."""


@dataclass
class Proxy:
    upstream: str
    """Path of the server's socket."""
    target: str | None = None
    when: When = "before"
    cut: asyncio.Event = field(default_factory=asyncio.Event)
    refuses: bool = False
    """New connections are closed at once."""
    lines: set[asyncio.StreamWriter] = field(default_factory=set)
    """To clients: the connections that are open now."""

    def aim(self, statement: str, when: When) -> None:
        """The next COMMIT of this statement, on whichever connection."""
        self.target, self.when = statement, when
        self.cut.clear()

    async def cut_all(self, seconds: float) -> None:
        """Every connection is cut, and nobody is connected for so long."""
        self.refuses = True
        for writer in list(self.lines):
            writer.transport.abort()
        await asyncio.sleep(seconds)
        self.refuses = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuses:
            writer.transport.abort()
            return
        server_reader, server_writer = await asyncio.open_unix_connection(self.upstream)
        line = _Line(self, reader, writer, server_reader, server_writer)
        answers = asyncio.create_task(line.relay_answers())
        self.lines.add(writer)
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError, Cut):
                await line.relay_questions()
        finally:
            self.lines.discard(writer)
            answers.cancel()
            for end in (writer, server_writer):
                end.transport.abort()


@dataclass
class _Line:
    proxy: Proxy
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    server_reader: asyncio.StreamReader
    server_writer: asyncio.StreamWriter
    texts: dict[bytes, str] = field(default_factory=dict)
    """Prepared statements by name."""
    touched: bool = False
    """Whether the target has run in what is not committed yet."""
    in_transaction: bool = False
    deaf: bool = False
    """The answers are kept from the client."""
    done: asyncio.Event = field(default_factory=asyncio.Event)

    async def relay_questions(self) -> None:
        size = await self.reader.readexactly(4)
        await self._send(size + await self.reader.readexactly(int.from_bytes(size, "big") - 4))  # the start-up message
        while True:
            head = await self.reader.readexactly(HEADER)
            body = await self.reader.readexactly(int.from_bytes(head[1:], "big") - 4)
            commits = self._notice(head[:1], body)
            if commits and self.touched and self.proxy.target is not None:
                await self._cut(head + body)
            if commits:
                self.touched = False
            await self._send(head + body)

    async def relay_answers(self) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await self.server_reader.readexactly(HEADER)
                body = await self.server_reader.readexactly(int.from_bytes(head[1:], "big") - 4)
                if head[:1] == b"Z":
                    self.done.set()
                if not self.deaf:
                    self.writer.write(head + body)
                    await self.writer.drain()

    def _notice(self, kind: bytes, body: bytes) -> bool:
        """Whether this message commits something."""
        if kind == b"P":
            name, text, _ = body.split(b"\0", 2)
            self.texts[name] = text.decode()
        elif kind == b"B":
            statement = body.split(b"\0", 2)[1]
            self.touched |= self.proxy.target is not None and self.texts.get(statement) == self.proxy.target
        elif kind == b"Q":
            word = body.rstrip(b"\0;").split(b" ")[0].upper()
            if word == b"BEGIN":
                self.in_transaction = True
            if word in {b"COMMIT", b"ROLLBACK"}:
                self.in_transaction = False
                self.touched &= word == b"COMMIT"
                return word == b"COMMIT"
        return kind == b"S" and not self.in_transaction

    async def _cut(self, message: bytes) -> None:
        when = self.proxy.when
        self.proxy.target = None
        if when == "after":
            self.deaf = True
            self.done.clear()
            await self._send(message)
            await self.done.wait()
        self.proxy.cut.set()
        raise Cut

    async def _send(self, message: bytes) -> None:
        self.server_writer.write(message)
        await self.server_writer.drain()


@asynccontextmanager
async def cutting(dsn: str, folder: Path) -> AsyncIterator[tuple[Proxy, str]]:
    """A proxy before the server of this DSN, and the DSN that leads through it."""
    parts = urlsplit(dsn)
    place = {name: values[0] for name, values in parse_qs(parts.query).items()}
    socket = f".s.PGSQL.{place['port']}"
    proxy = Proxy(f"{place['host']}/{socket}")
    server = await asyncio.start_unix_server(proxy.serve, folder / socket)
    try:
        yield proxy, dsn.replace(parts.query, f"host={quote(str(folder), safe='')}&port={place['port']}")
    finally:
        server.close()


STATEMENTS = {
    "deploy": ("dags", "insert_version"),
    "activate": ("dags", "set_current_version"),
    "trigger": ("sources", "store_trigger"),
    "invalidate": ("events", "store_invalidation"),
    "cancel": ("lifecycle", "cancel_task"),
    "retry": ("lifecycle", "revive_task"),
    "claim": ("claim", "claim_tasks"),
    "heartbeat": ("claim", "renew_leases"),
    "events": ("events", "store_events"),
    "publish a batch": ("events", "publish_buffer"),
    "complete": ("complete", "complete_tasks"),
    "complete with outputs": ("complete", "insert_commit"),
    "route events": ("route", "route_events"),
    "route invalidations": ("route", "route_invalidations"),
    "give slots": ("route", "wake_waiting"),
    "take entries": ("outbox", "take_entries"),
    "keep entries": ("outbox", "mark_entries_done"),
    "run here": ("in_process", "lock_job"),
    "expire leases": ("lifecycle", "expire_leases"),
    "queue retries": ("lifecycle", "retry_due"),
    "start sources": ("sources", "start_sources"),
    "retire tasks": ("dags", "cancel_retired_tasks"),
    "record keys": ("signing_keys", "insert_keys"),
    "settle keys": ("signing_keys", "plan"),
}
