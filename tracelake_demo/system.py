"""A `trace up` of the demo's own, and what is asked of it: by the command line, and by its public door."""

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

from tracelake.errors import SetupError
from tracelake.lite.home import Home
from tracelake.runtime.tls import client_context
from tracelake.settings.root import PREFIX
from tracelake.wire.query_messages import ARROW

Say = Callable[[str], None]
Command = Callable[[Sequence[str]], None]
"""The command line itself: words, as they would be typed after `trace`."""
OPEN, READY = "the doors are open", "Trace is ready"
"""How `trace up` says so."""
PAGE = 500
SHORT_RUN = {
    # Whoever asks by SQL first starts the second Spark: it need not take cores from the first before that.
    "TRACE_QUERY__WARM_AFTER_SECONDS": "3600",
    # Over in a minute: what Java's better compiler does would not pay in that time.
    "TRACE_SPARK__QUICK_COMPILER": "true",
    # Some thousand rows are not worth a second task in every stage.
    "TRACE_SPARK__SHUFFLE_PARTITIONS": "1",
}


@dataclass(frozen=True)
class Running:
    home: Home
    ready: dict[str, Any]
    http: httpx.Client
    command: Command | None = None
    """Runs verbs in this process. None: each is a process of its own, which is most of a second of a core more."""
    until_all_is_ready: Callable[[], None] = lambda: None
    """The doors are open before that: Spark takes longest."""

    def get(self, path: str, query: Mapping[str, str] | None = None, *, token: bool = True) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.ready['user_token']}"} if token else {}
        return self.http.get(path, params=query, headers=headers)

    def trace(self, *verb: str) -> Any:
        """A verb of the command line, as anybody would type it; its JSON."""
        words = [*verb, "--home", str(self.home.root), "--json"]
        if self.command is not None:
            with redirect_stdout(StringIO()) as said:
                self.command(words)
            return json.loads(said.getvalue())
        argv = [sys.executable, "-m", "tracelake", *words]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SetupError(f"`trace {' '.join(verb)}` failed", hint=done.stdout + done.stderr)
        return json.loads(done.stdout)

    def query(self, sql: str) -> list[dict[str, Any]]:
        """The rows of a SELECT, through the public door."""
        headers = {"Authorization": f"Bearer {self.ready['user_token']}"}
        answer = self.http.post("/v1/query", json={"sql": sql}, headers=headers, timeout=120)
        if not answer.is_success:
            raise SetupError(f"a query failed: {answer.text}")
        said = answer.json()
        names = [column["name"] for column in said["columns"]]
        return [dict(zip(names, row, strict=True)) for row in said["rows"]]

    def table(self, sql: str) -> pa.Table:
        """The same, with its types."""
        headers = {"Authorization": f"Bearer {self.ready['user_token']}", "Accept": ARROW}
        answer = self.http.post("/v1/query", json={"sql": sql}, headers=headers, timeout=120)
        if not answer.is_success:
            raise SetupError(f"a query failed: {answer.text}")
        return pa.ipc.open_stream(answer.content).read_all()

    def outbox_is_empty(self) -> bool:
        """Whether every event was routed, and every task and message sent; unknown while the door is away."""
        try:
            answer = self.get("/v1/outbox")
        except httpx.HTTPError:
            return False
        return answer.is_success and not answer.json()["rows"]

    def tasks(self, dag: str, **query: str) -> list[dict[str, Any]]:
        """The newest of them; empty while the door is away, as it is while a process is replaced.

        All of a DAG in one call where several things are asked: whoever looks takes from what he waits for.
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
    """While it is shown, no setting of whoever started it holds: they may name databases and systems that matter."""
    theirs = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith(PREFIX)}
    try:
        yield
    finally:
        os.environ.update(theirs)


@contextmanager
def up(home: Home, line: Say, more: Mapping[str, str], command: Command | None = None) -> Iterator[Running]:
    """`trace up` as anybody would start it, its own lines passed on as they come; yields when the doors are open."""
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
        said = json.loads(home.ready.read_text())
        verify = client_context(Path(said["ca_file"]))
        with httpx.Client(base_url=said["endpoints"]["gateway"], verify=verify, timeout=20) as http:
            yield Running(home, said, http, command, rest)
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate()


def _pass_on(process: subprocess.Popen[str], line: Say, *last: str) -> str:
    """Until it says one of these; which."""
    assert process.stdout is not None  # noqa: S101 - PIPE above
    said = []
    for text in process.stdout:
        said.append(text.rstrip())
        if text.split()[1:2] == ["ready"] or text.startswith(OPEN):
            line(text.rstrip())
        for words in last:
            if text.startswith(words):
                return words
    raise SetupError("`trace up` ended before it was ready", hint="\n".join(said[-5:]))
