"""The SDK's connections: kept over calls, opened again when the server closed them; no call gets another's answer."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

from tests.support.waiting import SECONDS
from trace_udf import Refused
from trace_udf.connections import TRIES, Asked, call, close

Answer = Callable[[BaseHTTPRequestHandler, int], tuple[int, bytes]]


@contextmanager
def listener(answer: Answer) -> Iterator[tuple[str, list[int]]]:
    """A server that answers by the number of the request; with the port that each came from."""
    came = list[int]()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 64 * 1024

        def do_POST(self) -> None:
            came.append(self.client_address[1])
            status, body = answer(self, len(came) - 1)
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """A test says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", came
    finally:
        close()
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_connection_is_kept_from_call_to_call() -> None:
    with listener(lambda _, n: (200, str(n).encode())) as (url, came):
        assert [call(url, Asked("POST", "/"))[1] for _ in range(3)] == [b"0", b"1", b"2"]
    assert len(set(came)) == 1


def test_a_connection_that_the_server_closed_meanwhile_is_opened_again_at_once() -> None:
    def closing(handler: BaseHTTPRequestHandler, n: int) -> tuple[int, bytes]:
        handler.close_connection = True  # without a word
        return 200, str(n).encode()

    with listener(closing) as (url, came):
        assert [call(url, Asked("POST", "/"))[1] for _ in range(3)] == [b"0", b"1", b"2"]
    assert len(set(came)) == 3


def test_what_may_help_later_is_tried_again_and_what_may_not_is_not() -> None:
    with listener(lambda _, n: (503 if n < 2 else 200, str(n).encode())) as (url, _):
        assert call(url, Asked("POST", "/")) == (200, b"2")
    with listener(lambda *_: (409, b"no")) as (url, came):
        assert call(url, Asked("POST", "/")) == (409, b"no")
    assert len(came) == 1


def test_a_server_that_takes_too_long_is_called_once_and_its_late_answer_is_dropped() -> None:
    heard, late = threading.Event(), threading.Event()

    def slow(_: BaseHTTPRequestHandler, n: int) -> tuple[int, bytes]:
        if n == 1:
            heard.set()
            late.wait(SECONDS)
        return 200, str(n).encode()

    with listener(slow) as (url, came):
        assert call(url, Asked("POST", "/"))[1] == b"0"
        with pytest.raises(Refused, match=r"does not answer: no answer within 0\.2 s") as refused:
            call(url, Asked("POST", "/", seconds=0.2))
        assert heard.wait(SECONDS)  # a busy server may read it only when its caller is gone
        late.set()
        assert (refused.value.retryable, len(came)) == (True, 2)
        assert call(url, Asked("POST", "/"))[1] == b"2"


def test_a_refused_connection_is_reported_with_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = list[float]()
    # Its own clock alone: other threads of this process sleep too.
    monkeypatch.setattr("trace_udf.connections.time", SimpleNamespace(sleep=waits.append))
    with socket.socket() as taken:  # so that no other process listens there
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(Refused, match=f"{url} does not answer") as refused:
            call(url, Asked("POST", "/v1/task/complete"))
    assert (refused.value.code, refused.value.retryable, len(waits)) == ("service_unavailable", True, TRIES - 1)
