"""A webhook receiver for alerts on this machine, which checks signatures."""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Hook:
    url: str
    secret: str = ""
    deliveries: list[dict[str, Any]] = field(default_factory=list)
    """Deliveries with a valid signature, in order, with repetitions."""
    refused: int = 0

    def believes(self, signature: str, body: bytes) -> bool:
        parts = dict(part.partition("=")[::2] for part in signature.split(","))
        signed = parts.get("t", "").encode() + b"." + body
        expected = hmac.new(self.secret.encode(), signed, hashlib.sha256).hexdigest()
        return hmac.compare_digest(expected, parts.get("v1", ""))


@contextmanager
def listening() -> Iterator[Hook]:
    hook = Hook("")

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            good = hook.believes(self.headers.get("X-Trace-Signature", ""), body)
            if good:
                hook.deliveries.append(json.loads(body))
            else:
                hook.refused += 1
            self.send_response(204 if good else 401)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Logs nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        hook.url = f"http://127.0.0.1:{server.server_port}/hook"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield hook
        finally:
            server.shutdown()
