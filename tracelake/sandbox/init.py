"""The first process in a sandbox: drops its user, sets limits, connects loopback ports to sockets, runs the program.

The interpreter runs it as a file, with only modules of the standard library that load quickly. It is not trusted: code
that takes it over has what the function has, which is these sockets.
"""

from __future__ import annotations

import json
import os
import resource
import selectors
import signal
import socket
import sys
from contextlib import suppress
from typing import Any, Final

CHUNK: Final = 65536
LIMITS: Final = {
    "processes": resource.RLIMIT_NPROC,
    "file_bytes": resource.RLIMIT_FSIZE,
    "open_files": resource.RLIMIT_NOFILE,
    "data_bytes": resource.RLIMIT_DATA,
    "cpu_seconds": resource.RLIMIT_CPU,
    "core": resource.RLIMIT_CORE,
}


def main(arguments: dict[str, Any]) -> int:
    _become(arguments["uid"])
    os.nice(arguments.get("nice", 0))
    for name, most in arguments["limits"].items():
        resource.setrlimit(LIMITS[name], (most, most))
    pump = Pump()
    for port, path in arguments.get("listeners", {}).items():
        pump.listen(int(port), path)
    for file, port in arguments.get("served", {}).items():
        pump.serve(int(file), port)
    child = os.posix_spawn(
        arguments["argv"][0], arguments["argv"], arguments["env"], setsigdef=[signal.SIGPIPE, signal.SIGXFSZ]
    )
    return pump.until_ends(child)


def _become(uid: int) -> None:
    """Changes the user if root started the sandbox; that drops every capability for good."""
    if os.getuid() == 0 and uid:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)


class Pump:
    """Copies bytes between TCP on loopback and unix sockets, with backpressure."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._targets: dict[socket.socket, str | int] = {}
        """Where a connection to each listener goes: a unix socket, or a port of the loopback."""
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._held: dict[socket.socket, bytes] = {}
        self._over: set[socket.socket] = set()

    def listen(self, port: int, path: str) -> None:
        """Connect a port of the loopback to a unix socket outside."""
        self._accept_from(socket.create_server(("127.0.0.1", port), backlog=64), path)

    def serve(self, file: int, port: int) -> None:
        """Connect an inherited listener, to which the outside connects, to a port of the loopback."""
        self._accept_from(socket.socket(fileno=file), port)

    def _accept_from(self, listener: socket.socket, target: str | int) -> None:
        listener.setblocking(False)  # noqa: FBT003 - the library's
        self._targets[listener] = target
        self._selector.register(listener, selectors.EVENT_READ)

    def until_ends(self, child: int) -> int:
        """Returns the exit code of the child."""
        woken, wake = socket.socketpair()
        wake.setblocking(False)  # noqa: FBT003 - the library's
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        self._selector.register(woken, selectors.EVENT_READ)
        while (code := _ended(child)) is None:
            for key, events in self._selector.select():
                if key.fileobj is woken:
                    woken.recv(CHUNK)
                else:
                    self._move(key.fileobj, events)
        return code

    def _move(self, sock: Any, events: int) -> None:
        try:
            if sock in self._targets:
                self._join(sock)
            elif sock in self._pairs:
                if events & selectors.EVENT_WRITE:
                    self._write(sock)
                if events & selectors.EVENT_READ and sock in self._pairs:
                    self._read(sock)
        except BlockingIOError:
            return
        except OSError:
            self._part(sock)

    def _join(self, listener: socket.socket) -> None:
        near, _ = listener.accept()
        target = self._targets[listener]
        far = socket.socket(socket.AF_UNIX if isinstance(target, str) else socket.AF_INET)
        try:
            far.connect(target if isinstance(target, str) else ("127.0.0.1", target))
        except OSError:
            near.close()
            far.close()
            return
        tcp = near if isinstance(target, str) else far
        tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for item, other in ((near, far), (far, near)):
            item.setblocking(False)  # noqa: FBT003 - the library's
            self._pairs[item] = other
            self._held[item] = b""
            self._selector.register(item, selectors.EVENT_READ)

    def _read(self, sock: socket.socket) -> None:
        other = self._pairs[sock]
        data = sock.recv(CHUNK)
        if not data:
            self._over.add(sock)
            if other in self._over:
                self._part(sock)
                return
            if not self._held[other]:
                other.shutdown(socket.SHUT_WR)
        self._held[other] += data
        self._write(other)

    def _write(self, sock: socket.socket) -> None:
        held = self._held[sock]
        if held:
            with suppress(BlockingIOError):
                self._held[sock] = held[sock.send(held) :]
        other = self._pairs[sock]
        if not self._held[sock] and other in self._over and held:
            sock.shutdown(socket.SHUT_WR)
        self._watch(sock)
        self._watch(other)

    def _watch(self, sock: socket.socket) -> None:
        wanted = selectors.EVENT_WRITE if self._held[sock] else 0
        if sock not in self._over and not self._held[self._pairs[sock]]:
            wanted |= selectors.EVENT_READ
        known = self._selector.get_map().get(sock)
        if not wanted:
            if known is not None:
                self._selector.unregister(sock)
        elif known is None:
            self._selector.register(sock, wanted)
        elif known.events != wanted:
            self._selector.modify(sock, wanted)

    def _part(self, sock: socket.socket) -> None:
        other = self._pairs.pop(sock, None)
        for item in (sock, other):
            if item is None:
                continue
            self._pairs.pop(item, None)
            self._held.pop(item, None)
            self._over.discard(item)
            if item in self._selector.get_map():
                self._selector.unregister(item)
            item.close()


def _ended(child: int) -> int | None:
    """The exit code of the child if it has ended; reaps other processes."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return 1
        if pid == 0:
            return None
        if pid == child:
            return os.waitstatus_to_exitcode(status) & 0xFF


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
