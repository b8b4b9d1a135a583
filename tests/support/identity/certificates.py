"""Real handshakes with the certificates of a folder, and what lies in it."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import stat
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509

from tests.support.waiting import SECONDS
from tracelake.lite.certificates import ensure_certificates
from tracelake.runtime.tls import TlsFiles, client_context, server_context

# Handshakes are checked against the real clock, so certificates of "the past" are made relative to it.
NOW = datetime.now(UTC).replace(microsecond=0)
DAY = timedelta(days=1)
YEAR = 365 * DAY


@contextmanager
def listener(context: ssl.SSLContext) -> Iterator[int]:
    """A server on both loopback addresses that says hello to each client that passes the handshake."""
    listeners = []
    v4 = socket.create_server(("127.0.0.1", 0))
    port: int = v4.getsockname()[1]
    listeners.append(v4)
    if socket.has_dualstack_ipv6():
        listeners.append(socket.create_server(("::1", port), family=socket.AF_INET6))
    threads = [threading.Thread(target=_serve, args=(listener, context)) for listener in listeners]
    for thread in threads:
        thread.start()
    try:
        yield port
    finally:
        for listener in listeners:
            listener.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join(SECONDS)
        for listener in listeners:
            listener.close()


def _serve(listener: socket.socket, context: ssl.SSLContext) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection:
            connection.settimeout(SECONDS)
            try:
                with context.wrap_socket(connection, server_side=True) as secured:
                    secured.sendall(b"hello")
                    secured.recv(1)
            except OSError:
                continue


def greet(port: int, context: ssl.SSLContext, name: str) -> bytes:
    address = "::1" if name == "::1" and socket.has_dualstack_ipv6() else "127.0.0.1"
    with (
        socket.create_connection((address, port), timeout=SECONDS) as connection,
        context.wrap_socket(connection, server_hostname=name) as secured,
    ):
        return secured.recv(10)


def served(port: int, context: ssl.SSLContext) -> x509.Certificate:
    with (
        socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as connection,
        context.wrap_socket(connection, server_hostname="localhost") as secured,
    ):
        shown = secured.getpeercert(binary_form=True)
    assert shown is not None
    return x509.load_der_x509_certificate(shown)


def works(files: TlsFiles) -> bool:
    with listener(server_context(files)) as port:
        return greet(port, client_context(files.ca), "localhost") == b"hello"


def fresh_server(folder: Path, files: TlsFiles) -> TlsFiles:
    """A listener that started when the old authority was still signing: its certificate is valid by the real clock."""
    ensure_certificates(folder, NOW - DAY - timedelta(hours=2))
    combined = folder.parent / "kept.pem"
    shutil.copy(files.cert, combined)
    return TlsFiles(files.ca, combined, combined)


def killed_after(step: int, folder: Path) -> bool:
    """Run it in a child that dies, without a goodbye, at its n-th change of the file system. True if it had fewer."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other tests' threads: the child uses none of them
        child = os.fork()
    if child == 0:
        left = step

        def count(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal left
            writes = (
                event == "open" and isinstance(arguments[2], int) and bool(arguments[2] & (os.O_WRONLY | os.O_RDWR))
            )
            if writes or event in {"os.mkdir", "os.rename", "os.remove", "os.chmod", "fcntl.flock"}:
                if left == 0:
                    os._exit(9)
                left -= 1

        sys.addaudithook(count)
        try:
            ensure_certificates(folder, NOW)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) == 0


def certificate(path: Path) -> x509.Certificate:
    return certificates(path)[0]


def certificates(path: Path) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(path.read_bytes())


def key_of(content: bytes) -> bytes:
    return content[: content.index(b"-----BEGIN CERTIFICATE")]


def certificate_of(content: bytes) -> bytes:
    return content[content.index(b"-----BEGIN CERTIFICATE") :]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def modes(files: TlsFiles) -> dict[str, int]:
    folder = files.ca.parent
    found = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.glob("*.pem")}
    return {".": stat.S_IMODE(folder.stat().st_mode), **found}
