"""Calls to doors, over connections that outlive an invocation: a warm call costs one round trip."""

from __future__ import annotations

import http.client
import ssl
import threading
import time
from typing import Any, Dict, Mapping, Optional, Tuple
from urllib.parse import urlsplit

from trace_udf.errors import refusal

TRIES = 6
FIRST_WAIT_SECONDS = 0.1
LONGEST_WAIT_SECONDS = 5.0
TIMEOUT_SECONDS = 120.0
BUSY = 429
FAULT = 500

_kept = threading.local()
"""By thread: a connection serves one call at a time."""


def call(
    base: str, method: str, path: str, body: bytes = b"", headers: Optional[Mapping[str, str]] = None
) -> Tuple[int, bytes]:
    """Status and body of the answer. Tried again while nobody answers, or the door says that it may help.

    Every call of a task may be repeated: the doors know it by its fence and content.
    """
    wait = FIRST_WAIT_SECONDS
    for last in [False] * (TRIES - 1) + [True]:
        try:
            status, answer = _once(base, method, path, body, headers or {})
            if last or (status != BUSY and status < FAULT):
                return status, answer
        except (OSError, http.client.HTTPException) as away:
            if last:
                raise refusal(f"{method} {path}", 503, _away(base, away)) from away
        time.sleep(wait)
        wait = min(2 * wait, LONGEST_WAIT_SECONDS)
    raise AssertionError("unreachable")


def close() -> None:
    """Let go of this thread's connections; the next call opens its own."""
    for connection in _connections().values():
        connection.close()
    _connections().clear()


def _once(base: str, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Tuple[int, bytes]:
    kept = _connections()
    prefix = urlsplit(base).path.rstrip("/")
    fresh = base not in kept
    connection = kept.setdefault(base, _opened(base)) if fresh else kept[base]
    try:
        return _asked(connection, method, prefix + path, body, headers)
    except (OSError, http.client.HTTPException):
        connection.close()
        kept.pop(base, None)
        if fresh:
            raise
    # It was kept, and the other side had closed it meanwhile: that is no outage yet.
    again = kept[base] = _opened(base)
    try:
        return _asked(again, method, prefix + path, body, headers)
    except (OSError, http.client.HTTPException):
        kept.pop(base, None)
        raise


def _asked(
    connection: http.client.HTTPConnection, method: str, path: str, body: bytes, headers: Mapping[str, str]
) -> Tuple[int, bytes]:
    connection.request(method, path, body=body or None, headers=dict(headers))
    answer = connection.getresponse()
    return answer.status, answer.read()


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


def _away(base: str, away: BaseException) -> bytes:
    import json

    told = f"{base} does not answer: {away or type(away).__name__}"
    return json.dumps({"error": {"code": "door_unavailable", "message": told, "retryable": True}}).encode()
