"""`/metrics` on loopback, for processes without a listener of their own, and for scrapers on the same machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from socketserver import ThreadingMixIn
from threading import Thread
from typing import Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import make_wsgi_app

from tracelake.errors import SetupError
from tracelake.runtime.metrics import Metrics

LOOPBACK = "127.0.0.1"
STALL_SECONDS: Final = 10.0


class _Handler(WSGIRequestHandler):
    timeout = STALL_SECONDS
    """The standard library's own limit: on the wait for the next bytes of a request."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the standard library's name
        """A scrape is not worth a line."""


class _Server(ThreadingMixIn, WSGIServer):
    """A thread for each scrape: a caller that stalls delays no other."""

    daemon_threads = True


@contextmanager
def serve_metrics(metrics: Metrics, port: int) -> Iterator[None]:
    """In a thread of its own, so that a busy event loop still answers. 0: not at all."""
    if port == 0:
        yield
        return
    try:
        server = make_server(LOOPBACK, port, make_wsgi_app(metrics.registry), _Server, _Handler)
    except OSError as wrong:
        raise SetupError(
            f"the metrics listener cannot have {LOOPBACK}:{port}: {wrong.strerror}",
            where="metrics.port",
            hint="choose another, or 0 for none",
        ) from None
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
