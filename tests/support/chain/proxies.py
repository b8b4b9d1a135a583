"""Nodes between a test and the dev chain: one rewrites responses, others count requests."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.waiting import SECONDS, until
from tracelake.chain.nodes.rpc_pool import Endpoint

Change = Callable[[list[dict[str, Any]], list[dict[str, Any]]], "bytes | list[dict[str, Any]]"]
"""The calls of one request and their true answers -> what is answered."""


@contextmanager
def rewriting_proxy(url: str, change: Change) -> Iterator[str]:
    """Its address."""

    class Node(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            asked = self.rfile.read(int(self.headers["content-length"]))
            request = urllib.request.Request(url, asked, {"content-type": "application/json"})  # noqa: S310
            with urllib.request.urlopen(request, timeout=SECONDS) as answer:  # noqa: S310 - our own loopback
                changed = change(json.loads(asked), json.load(answer))
            output = changed if isinstance(changed, bytes) else json.dumps(changed).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(output)))
            self.end_headers()
            self.wfile.write(output)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Node)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


STEPS = 3
"""The first answer may be one of before; the second is a look from now on, which is done when a third comes."""


@dataclass
class CountingNode:
    """A node that passes every request on."""

    name: str
    url: str = ""
    requests: int = 0
    polls: int = 0
    """How often the newest block was requested, with which every step of a follower begins."""

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(self.url, self.name)

    def note(self, calls: list[dict[str, Any]], answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
        self.requests += 1
        self.polls += any(call["params"] and call["params"][0] == "latest" for call in calls)
        return answers


@contextmanager
def counting_node(url: str, name: str = "a") -> Iterator[CountingNode]:
    node = CountingNode(name)
    with rewriting_proxy(url, node.note) as node.url:
        yield node


@dataclass
class WatchedNode:
    """A node that notes how many requests were under way at once, and when their calls came."""

    takes_seconds: float
    url: str = ""
    under_way: int = 0
    most: int = 0
    came: list[tuple[float, int]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def calls(self) -> int:
        return sum(calls for _, calls in list(self.came))

    def note(self, calls: list[dict[str, Any]], answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
        with self.lock:
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            self.came.append((time.monotonic(), len(calls)))
        time.sleep(self.takes_seconds)
        with self.lock:
            self.under_way -= 1
        return answers

    def check_rate(self, calls_per_second: float, began: float) -> None:
        """Those of a second may come at once; from then on, no more than the rate."""
        total = 0
        for when, calls in sorted(self.came):
            total += calls
            assert total <= calls_per_second * (when - began) + calls_per_second


@contextmanager
def watched_node(url: str, takes_seconds: float = 0.02) -> Iterator[WatchedNode]:
    node = WatchedNode(takes_seconds)
    with rewriting_proxy(url, node.note) as node.url:
        yield node


async def until_polled(*nodes: CountingNode) -> None:
    """Until a step that began after this call has ended, and each of the nodes was called in such steps."""
    polls = sum(node.polls for node in nodes) + STEPS * len(nodes)
    requests = [node.requests + STEPS for node in nodes]
    await until(
        lambda: (
            sum(node.polls for node in nodes) >= polls
            and all(node.requests >= wanted for node, wanted in zip(nodes, requests, strict=True))
        ),
        "the follower has polled each node",
    )
