"""A node that passes questions on to the dev chain, and changes its answers on the way back."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

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
            with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - our own loopback
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
