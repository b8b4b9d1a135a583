"""The demo's own `trace up`, and calls to it: with the command line and the public API."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa

from tracelake.domain.access.object_names import ObjectName
from tracelake.errors import SetupError
from tracelake.lite.home import Home
from tracelake.runtime.tls import client_context
from tracelake.settings.root import PREFIX
from tracelake.wire.internal.queries import ARROW

Say = Callable[[str], None]
Command = Callable[[Sequence[str]], None]
"""The command line: the words after `trace`."""
OPEN, READY = "the listeners are open", "Trace is ready"
"""Lines of `trace up`."""
PAGE = 500
SHORT_RUN = {
    # The first query starts the second Spark, which takes no cores from the first before that.
    "TRACE_QUERY__WARM_AFTER_SECONDS": "3600",
    # It runs for a minute: Java's optimising compiler would not pay off.
    "TRACE_SPARK__QUICK_COMPILER": "true",
    # A few thousand rows need no second task per stage.
    "TRACE_SPARK__SHUFFLE_PARTITIONS": "1",
}


@dataclass(frozen=True)
class Running:
    home: Home
    ready: dict[str, Any]
    http: httpx.Client
    command: Command | None = None
    """Runs verbs in this process. None: each verb is a process, which takes most of a second more."""
    until_all_is_ready: Callable[[], None] = lambda: None
    """The listeners are open before that: Spark takes longest."""
    read: Callable[[ObjectName], bytes] | None = None
    """Reads a file of a dataset. None: it is on the disk of the home."""

    def stored(self, name: ObjectName) -> Path | pa.BufferReader:
        if self.read is None:
            return self.home.root / "objects" / name.bucket / name.key
        return pa.BufferReader(self.read(name))

    def get(self, path: str, query: Mapping[str, str] | None = None, *, token: bool = True) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.ready['user_token']}"} if token else {}
        return self.http.get(path, params=query, headers=headers)

    def trace(self, *verb: str) -> Any:
        """Runs a verb of the command line; returns its JSON."""
        words = [*verb, "--home", str(self.home.root), "--json"]
        if self.command is not None:
            with redirect_stdout(StringIO()) as output:
                self.command(words)
            return json.loads(output.getvalue())
        argv = [sys.executable, "-m", "tracelake", *words]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SetupError(f"`trace {' '.join(verb)}` failed", hint=done.stdout + done.stderr)
        return json.loads(done.stdout)

    def answer(self, sql: str) -> dict[str, Any]:
        """The answer to a SELECT, through the public API: what `trace query --json` prints."""
        headers = {"Authorization": f"Bearer {self.ready['user_token']}"}
        answer = self.http.post("/v1/query", json={"sql": sql}, headers=headers, timeout=120)
        if not answer.is_success:
            raise SetupError(f"a query failed: {answer.text}")
        found: dict[str, Any] = answer.json()
        return found

    def query(self, sql: str) -> list[dict[str, Any]]:
        """The rows of a SELECT."""
        output = self.answer(sql)
        names = [column["name"] for column in output["columns"]]
        return [dict(zip(names, row, strict=True)) for row in output["rows"]]

    def table(self, sql: str) -> pa.Table:
        """The same, with its types."""
        headers = {"Authorization": f"Bearer {self.ready['user_token']}", "Accept": ARROW}
        answer = self.http.post("/v1/query", json={"sql": sql}, headers=headers, timeout=120)
        if not answer.is_success:
            raise SetupError(f"a query failed: {answer.text}")
        return pa.ipc.open_stream(answer.content).read_all()

    def outbox_is_empty(self) -> bool:
        """Whether every event was routed, and every task and message sent; None while the Gateway is down."""
        try:
            answer = self.get("/v1/outbox")
        except httpx.HTTPError:
            return False
        return answer.is_success and not answer.json()["rows"]

    def tasks(self, dag: str, **query: str) -> list[dict[str, Any]]:
        """The newest tasks; empty while the Gateway is down.

        One call per DAG: polling slows down what it waits for.
        """
        try:
            answer = self.get("/v1/tasks", {"dag": dag, "limit": str(PAGE), **query})
        except httpx.HTTPError:
            return []
        found: list[dict[str, Any]] = answer.json().get("tasks", []) if answer.is_success else []
        return found

    def processes(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.home.status.read_text())["processes"]
        return found

    def process(self, name: str) -> dict[str, Any]:
        return next(item for item in self.processes() if item["name"] == name)


@contextmanager
def nobodys_settings() -> Iterator[None]:
    """Removes Trace's settings from the environment: they may name databases and systems in use."""
    theirs = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith(PREFIX)}
    try:
        yield
    finally:
        os.environ.update(theirs)


@contextmanager
def up(home: Home, line: Say, more: Mapping[str, str], command: Command | None = None) -> Iterator[Running]:
    """Runs `trace up` and prints its lines; yields when the listeners are open."""
    argv = [sys.executable, "-m", "tracelake", "up", "--home", str(home.root), "--port-base", "0"]
    began = time.time()
    process = subprocess.Popen(
        argv,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **SHORT_RUN, **more},
    )

    def rest() -> None:
        if reached == OPEN:
            _pass_on(process, line, READY)
        line(f"ready after {home.all_ready.stat().st_mtime - began:.1f} s")

    try:
        reached = _pass_on(process, line, OPEN, READY)
        output = json.loads(home.ready.read_text())
        verify = client_context(Path(output["ca_file"]))
        with httpx.Client(base_url=output["endpoints"]["gateway"], verify=verify, timeout=20) as http:
            yield Running(home, output, http, command, rest)
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate()


def _pass_on(process: subprocess.Popen[str], line: Say, *last: str) -> str:
    """Waits for one of these lines; returns it."""
    assert process.stdout is not None  # noqa: S101 - PIPE above
    output = []
    for text in process.stdout:
        output.append(text.rstrip())
        if text.split()[1:2] == ["ready"] or text.startswith(OPEN):
            line(text.rstrip())
        for words in last:
            if text.startswith(words):
                return words
    raise SetupError("`trace up` ended before it was ready", hint="\n".join(output[-5:]))
