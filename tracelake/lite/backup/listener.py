"""`trace backup` asks the running `trace up` for a backup, over a Unix socket.

Only `trace up` has the passwords of the embedded databases, and it gives them to nobody, so it makes the backup itself.
The caller sends one line, the folder, and receives lines: notes about the progress, and in the end the result or an
error. When it goes away before that, the backup is canceled and removed.

The socket belongs to the user who runs `trace up`, and processes of the system itself are refused: a worker runs as the
same user, and must not get a copy of the state database.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import threading
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from tracelake.domain.error_codes import KINDS
from tracelake.errors import BadInput, Conflict, Forbidden, Refused, SetupError, TraceError, Unavailable
from tracelake.lite.backup.contents import Manifest
from tracelake.lite.backup.make import Running, make_backup
from tracelake.lite.backup.progress import BackupProgress, Canceled
from tracelake.lite.home import Home, holder

SOCKET: Final = "backup"
"""Its name in the folder of sockets."""
LINE_LIMIT: Final = 64 * 1024
PEER: Final = struct.Struct("3i")
"""What the kernel says of the process at the other end: pid, user, group."""


class Request(msgspec.Struct, frozen=True):
    folder: str


class Reply(msgspec.Struct, frozen=True, omit_defaults=True):
    """One of them."""

    note: str | None = None
    made: Manifest | None = None
    error: dict[str, Any] | None = None


@asynccontextmanager
async def listening_for_backups(
    folder: Path, system: Running, sessions: Callable[[], Collection[int]]
) -> AsyncIterator[None]:
    """Serves requests while the block runs, one at a time. `sessions`: those of the system's own processes."""
    listener = _Listener(system, sessions)
    server = await asyncio.start_unix_server(listener.serve, folder / SOCKET, limit=LINE_LIMIT)
    (folder / SOCKET).chmod(0o600)
    try:
        yield
    finally:
        server.close()
        await listener.stop()


def request_backup(home: Home, folder: Path, note: Callable[[str], None]) -> Manifest:
    """Asks the `trace up` of this home; returns when the backup is complete."""
    if holder(home) is None:
        raise SetupError(
            f"nothing runs in {home.root}",
            where=str(home.root),
            hint="start it with `trace up`; of a stopped system, copy the home folder",
        )
    for reply in _replies(home, Request(str(folder))):
        if reply.note is not None:
            note(reply.note)
        if reply.error is not None:
            raise _as_error(reply.error)
        if reply.made is not None:
            return reply.made
    raise Unavailable("`trace up` has stopped, and no backup was made", where=str(home.root))


class _Listener:
    def __init__(self, system: Running, sessions: Callable[[], Collection[int]]) -> None:
        self._system = system
        self._sessions = sessions
        self._canceled = threading.Event()
        self._making: asyncio.Task[Manifest] | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            try:
                line = await reader.readline()  # also of one who is refused: unread, it would reset the connection
                self._refuse_own_processes(writer.get_extra_info("socket"))
                request = msgspec.json.decode(line, type=Request)
                reply = Reply(made=await self._make(Path(request.folder), reader, writer))
            except TraceError as error:
                reply = Reply(error=error.as_dict())
            except msgspec.DecodeError as error:
                reply = Reply(error=BadInput(f"the request cannot be read: {error}").as_dict())
            except OSError as error:
                reply = Reply(error=Unavailable(f"the backup failed: {error}").as_dict())
            _send(writer, reply)
            await writer.drain()
        except (Canceled, ConnectionError):
            pass  # nobody waits for the answer
        finally:
            writer.close()

    async def stop(self) -> None:
        self._canceled.set()
        if self._making is not None:
            await asyncio.wait([self._making])

    def _refuse_own_processes(self, connection: socket.socket) -> None:
        pid, user, _ = PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))
        with suppress(ProcessLookupError):
            if user == os.geteuid() and os.getsid(pid) not in self._sessions():
                return
        raise Forbidden("only the user who runs `trace up` may make a backup, and no process of the system itself")

    async def _make(self, folder: Path, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Manifest:
        if self._making is not None and not self._making.done():
            raise Conflict("another backup is being made", hint="wait until it is complete")
        loop, self._canceled = asyncio.get_running_loop(), threading.Event()
        progress = BackupProgress(lambda text: _from_thread(loop, writer, Reply(note=text)), self._canceled)
        self._making = asyncio.create_task(asyncio.to_thread(make_backup, self._system, folder, progress))
        gone = asyncio.create_task(reader.read())  # the caller sends nothing more: it ends when the caller does
        await asyncio.wait([self._making, gone], return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        if not self._making.done():
            self._canceled.set()
        return await self._making


def _from_thread(loop: asyncio.AbstractEventLoop, writer: asyncio.StreamWriter, reply: Reply) -> None:
    loop.call_soon_threadsafe(_send, writer, reply)


def _send(writer: asyncio.StreamWriter, reply: Reply) -> None:
    if not writer.is_closing():
        writer.write(msgspec.json.encode(reply) + b"\n")


def _replies(home: Home, request: Request) -> Iterator[Reply]:
    decoder = msgspec.json.Decoder(Reply)
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(str(_socket_of(home)))
            connection.sendall(msgspec.json.encode(request) + b"\n")
            with connection.makefile("rb") as lines:
                yield from map(decoder.decode, lines)
        except OSError:
            raise Unavailable(
                "`trace up` does not answer yet", where=str(home.root), hint="wait until its databases run"
            ) from None


def _socket_of(home: Home) -> Path:
    return Path((home.lock.parent / "sockets").read_text().strip()) / SOCKET


def _as_error(error: dict[str, Any]) -> TraceError:
    """The error of the other process."""
    return KINDS.get(error["code"], Refused)(error["message"], where=error["where"], hint=error["hint"])
