"""`/metrics` on loopback, for processes without a door of their own, and for whoever scrapes from the same machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import start_http_server

from trace_platform.errors import SetupError
from trace_platform.observe.metrics import Metrics

LOOPBACK = "127.0.0.1"


@contextmanager
def serve_metrics(metrics: Metrics, port: int) -> Iterator[None]:
    """In a thread of its own, so that a busy event loop still answers. 0: not at all."""
    if port == 0:
        yield
        return
    try:
        server, thread = start_http_server(port, addr=LOOPBACK, registry=metrics.registry)
    except OSError as wrong:
        raise SetupError(
            f"the metrics listener cannot have {LOOPBACK}:{port}: {wrong.strerror}",
            where="metrics.port",
            hint="choose another, or 0 for none",
        ) from None
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
