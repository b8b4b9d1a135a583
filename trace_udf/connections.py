"""HTTP calls over connections that outlive an invocation: a warm call costs one round trip."""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import time
from typing import Any, Dict, Mapping, NamedTuple, Tuple
from urllib.parse import urlsplit

from trace_udf.errors import Refused

TRIES = 6
FIRST_WAIT_SECONDS = 0.1
LONGEST_WAIT_SECONDS = 5.0
TIMEOUT_SECONDS = 120.0
BUSY = 429
FAULT = 500
TOO_SLOW = 504

_kept = threading.local()
"""Per thread: a connection serves one call at a time."""


class Asked(NamedTuple):
    method: str
    path: str
    body: bytes = b""
    headers: Mapping[str, str] = {}
    seconds: float = TIMEOUT_SECONDS
    """The timeout."""

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


def call(base: str, asked: Asked) -> Tuple[int, bytes]:
    """Returns status and body of the response. Retries while there is no response, or it says that a retry may help.

    Every call of a task is idempotent, by its fence and content. A call that timed out is not repeated: it would take
    as long again.
    """
    wait = FIRST_WAIT_SECONDS
    for last in [False] * (TRIES - 1) + [True]:
        try:
            status, answer = _once(base, asked)
            if last or status == TOO_SLOW or (status != BUSY and status < FAULT):
                return status, answer
        except socket.timeout as slow:
            raise _away(base, asked, f"no answer within {asked.seconds:g} s") from slow
        except (OSError, http.client.HTTPException) as away:
            if last:
                raise _away(base, asked, str(away) or type(away).__name__) from away
        time.sleep(wait)
        wait = min(2 * wait, LONGEST_WAIT_SECONDS)
    raise AssertionError("unreachable")


def close() -> None:
    """Closes this thread's connections; the next call opens new ones."""
    for connection in _connections().values():
        connection.close()
    _connections().clear()


def _once(base: str, asked: Asked) -> Tuple[int, bytes]:
    if base in _connections():
        try:
            return _over(base, asked)
        except socket.timeout:
            raise
        except (OSError, http.client.HTTPException):
            pass  # a kept connection that the server has closed meanwhile: not an outage
    return _over(base, asked)


def _over(base: str, asked: Asked) -> Tuple[int, bytes]:
    kept = _connections()
    connection = kept[base] = kept.get(base) or _opened(base)
    connection.timeout = asked.seconds
    if connection.sock is not None:
        connection.sock.settimeout(asked.seconds)
    try:
        path = urlsplit(base).path.rstrip("/") + asked.path
        connection.request(asked.method, path, body=asked.body or None, headers=dict(asked.headers))
        answer = connection.getresponse()
        return answer.status, answer.read()
    except BaseException:
        # A late response must not be read as that of the next call.
        connection.close()
        kept.pop(base, None)
        raise


def _opened(base: str) -> http.client.HTTPConnection:
    parts = urlsplit(base)
    if parts.scheme == "https":
        return http.client.HTTPSConnection(parts.netloc, timeout=TIMEOUT_SECONDS, context=_context())
    return http.client.HTTPConnection(parts.netloc, timeout=TIMEOUT_SECONDS)


def _context() -> ssl.SSLContext:
    """The system's CAs, or those of `SSL_CERT_FILE`, as OpenSSL has it."""
    found: Any = getattr(_kept, "context", None)
    if found is None:
        found = _kept.context = ssl.create_default_context()
    context: ssl.SSLContext = found
    return context


def _connections() -> Dict[str, http.client.HTTPConnection]:
    found: Any = getattr(_kept, "connections", None)
    if found is None:
        found = _kept.connections = {}
    connections: Dict[str, http.client.HTTPConnection] = found
    return connections


def _away(base: str, asked: Asked, why: str) -> Refused:
    message = f"{base} does not answer: {why}"
    return Refused(str(asked), 503, {"code": "service_unavailable", "message": message, "retryable": True})
