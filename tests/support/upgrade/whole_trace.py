"""A whole Trace, its dev chain and a webhook, driven only by what a user has: the command line and the public API.

Nothing of the product is imported, so that the same code drives an installation of any version.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import httpx

from tests.support.systems.trace_up import TraceUp
from tests.support.waiting import SECONDS

CHAIN_ID: Final = 1337
PAGE: Final = 500
SECRET: Final = "signs nothing but the deliveries of a throw-away home"
ENDED: Final = frozenset({"Completed", "Canceled", "Failed"})


class Trace(TraceUp):
    """`trace` on one home, by the name of its package."""

    http: httpx.Client
    """For the public API, while it is up."""

    def __init__(self, package: str, home: Path, env: Mapping[str, str]) -> None:
        super().__init__(home, env=env, package=package)

    @contextmanager
    def up(self, *options: str) -> Iterator[None]:
        """Yields when everything is ready; it is stopped as by `trace down` when the block is left."""
        self.options = list(options)
        with self.running(), self.client() as self.http:
            yield

    def pid(self, name: str) -> int:
        return int(self.processes()[name]["pid"])

    def begin_to_stop(self) -> None:
        """What `trace down` does first."""
        holder = json.loads((self.home / "run" / "lock").read_text())
        os.kill(int(holder["pid"]), signal.SIGTERM)

    def run(self, *command: str) -> Any:
        """A command of the command line; its JSON."""
        done = self.trace(*command, "--json")
        assert done.returncode == 0, f"trace {' '.join(command)}: {done.stdout}{done.stderr}"
        return json.loads(done.stdout)

    def fetch(self, path: str, **query: str) -> Any:
        answer = self.http.get(path, params=query)
        assert answer.is_success, f"{path}: {answer.text}"
        return answer.json()

    def tasks(self, **query: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.fetch("/v1/tasks", limit=str(PAGE), **query)["tasks"]
        return found

    def is_quiet(self) -> bool:
        """Every task but a source's has ended or waits for its next attempt, and every outbox entry is published."""
        open_tasks = [task for task in self.tasks() if task["job"] != "follow" and not has_ended(task)]
        return not open_tasks and not self.fetch("/v1/outbox")["rows"]

    def followed_to(self) -> int:
        for task in self.tasks(job="follow", status="Running"):
            progress = self.fetch(f"/v1/tasks/{task['id']}").get("progress") or {}
            return int(progress.get("done") or -1)
        return -1

    def log_of(self, task: str) -> list[str]:
        return [line["text"] for line in self.fetch(f"/v1/tasks/{task}/logs")["lines"]]

    def content(self, dataset: str) -> dict[str, Any]:
        """How many rows it has, and a hash of them that does not depend on their order."""
        answer = self.http.post("/v1/query", json={"sql": f"SELECT * FROM {dataset}"})  # noqa: S608 - our names
        assert answer.is_success, f"{dataset}: {answer.text}"
        found = answer.json()
        assert not found["truncated"], dataset
        lines = sorted(json.dumps(row) for row in found["rows"])
        text = "\n".join([json.dumps(found["columns"]), *lines])
        return {"rows": len(lines), "sha256": hashlib.sha256(text.encode()).hexdigest()}


def has_ended(task: Mapping[str, Any]) -> bool:
    return task["status"] in ENDED


@dataclass(frozen=True)
class Devchain:
    url: str

    def order(self, do: str, **parameters: int) -> dict[str, Any]:
        answer = httpx.post(f"{self.url}/control", json={"do": do, **parameters}, timeout=SECONDS)
        assert answer.is_success, answer.text
        found: dict[str, Any] = answer.json()
        return found

    @property
    def head(self) -> int:
        return int(self.order("describe")["head"])


@contextmanager
def devchain(package: str, journal: Path, *, blocks: int, finality: int) -> Iterator[Devchain]:
    """The chain of the journal, or a new one; on a free port of the loopback."""
    argv = [sys.executable, "-m", package, "devchain", "--json", "--stop-with-stdin", "--port", "0"]
    argv += ["--chain-id", str(CHAIN_ID), "--blocks", str(blocks), "--finality", str(finality), "--state", str(journal)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield Devchain(json.loads(process.stdout.readline())["url"])
        finally:
            process.stdin.close()
            process.wait(SECONDS)


@dataclass
class Webhook:
    url: str = ""
    events: list[tuple[str, str]] = field(default_factory=list)
    """Delivery id and the event's key, of all that came with a good signature."""
    unsigned: int = 0

    def take(self, signature: str, body: bytes) -> bool:
        parts = dict(part.partition("=")[::2] for part in signature.split(","))
        signed = parts.get("t", "").encode() + b"." + body
        good = hmac.compare_digest(hmac.new(SECRET.encode(), signed, "sha256").hexdigest(), parts.get("v1", ""))
        if good:
            sent = json.loads(body)
            self.events.append((sent["delivery_id"], sent["event"]["dedupe_key"]))
        else:
            self.unsigned += 1
        return good


@contextmanager
def webhook() -> Iterator[Webhook]:
    hook = Webhook()

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            good = hook.take(self.headers.get("X-Trace-Signature", ""), body)
            self.send_response(204 if good else 401)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Writes nothing to the test's output."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        hook.url = f"http://127.0.0.1:{server.server_port}/hook"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield hook
        finally:
            server.shutdown()
