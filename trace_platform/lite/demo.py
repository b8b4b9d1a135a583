"""`trace demo`: a whole Trace on this machine, shown and attacked, in under a minute. Every line says what was seen."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from trace_platform.errors import SetupError
from trace_platform.lite.guard import members_of
from trace_platform.lite.home import Home

Say = Callable[[str], None]


@dataclass(frozen=True)
class Running:
    """A `trace up` of this demo's own."""

    home: Home
    ready: dict[str, Any]

    def get(self, door: str, path: str, token: str | None = None) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        url = self.ready["endpoints"][door] + path
        return httpx.get(url, headers=headers, verify=_trusting(self.ready["ca_file"]), timeout=10)

    def process(self, name: str) -> dict[str, Any]:
        everyone = json.loads(self.home.status.read_text())["processes"]
        return next(one for one in everyone if one["name"] == name)

    def me(self) -> dict[str, Any]:
        answer = self.get("gateway", "/v1/me", self.ready["user_token"])
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found


def demo(heading: Say, line: Say) -> None:
    """Raises if anything shown is not as it should be."""
    folder = Path(tempfile.mkdtemp(prefix="trace-demo-"))
    try:
        _show(Home(folder / "home"), heading, line)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _show(home: Home, heading: Say, line: Say) -> None:
    heading("Starting: two Postgres servers, six processes, certificates and keys, from nothing")
    with _up(home, line) as system:
        before = _knock(system, heading, line)
        heading("Spark, warm, in the worker")
        line(system.process("worker")["status"])
        _kill_dispatcher(system, heading, line)
        families = {int(one["pid"]) for one in json.loads(home.status.read_text())["processes"]}
    heading("Stopped. Starting once more on the same home, without Spark")
    _expect(not members_of(families), "nothing is left running")
    line("nothing was left running")
    with _up(home, line, "--without", "worker,sink,query,scheduler") as system:
        after = system.me()
        _expect(after == before, "the same rows are there after a restart")
        line(f"the same user and organisation are there: {after['id']}")


def _knock(system: Running, heading: Say, line: Say) -> dict[str, Any]:
    heading("Knocking at every door, over TLS with the CA that was just made")
    for door in system.ready["endpoints"]:
        answer = system.get(door, "/readyz")
        _expect(answer.status_code == httpx.codes.OK, f"{door} is ready")
        line(f"{door:<20} {answer.url}  {answer.status_code} {answer.json()['status']}")
    try:
        httpx.get(system.ready["endpoints"]["gateway"] + "/healthz")
    except httpx.ConnectError:
        line("without that CA      refused: the certificate is nobody's we know")
    else:
        raise SetupError("a door was opened without TLS being checked")
    stranger = system.get("gateway", "/v1/me")
    _expect(stranger.status_code == httpx.codes.UNAUTHORIZED, "no token, no answer")
    line(f"/v1/me, no token     {stranger.status_code} {stranger.json()['error']['message']}")
    me = system.me()
    line(f"/v1/me, dev token    200 {me['email']}, {me['role']} of organisation {me['org_slug']!r}")
    return me


def _kill_dispatcher(system: Running, heading: Say, line: Say) -> None:
    heading("kill -9 of the Dispatcher")
    old = int(system.process("dispatcher")["pid"])
    os.kill(old, signal.SIGKILL)
    began = time.monotonic()
    while (now := system.process("dispatcher"))["state"] != "ready" or now["pid"] == old:
        _expect(time.monotonic() - began < 60, "the Dispatcher comes back")  # noqa: PLR2004 - a minute is far too long
        time.sleep(0.05)
    line(f"process {old} is gone, process {now['pid']} took over after {time.monotonic() - began:.1f} s")
    line(f"and answers: {system.me()['email']} is still {system.me()['role']}")


@contextmanager
def _up(home: Home, line: Say, *options: str) -> Iterator[Running]:
    """`trace up` as anybody would start it, its own lines passed on as they come."""
    ready = home.root.parent / "ready.json"
    argv = [sys.executable, "-m", "trace_platform", "up", "--home", str(home.root), "--port-base", "0"]
    began = time.monotonic()
    process = subprocess.Popen(
        [*argv, "--ready-file", str(ready), *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        _pass_on(process, ready, line)
        line(f"ready after {time.monotonic() - began:.1f} s")
        yield Running(home, json.loads(ready.read_text()))
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate()


def _pass_on(process: subprocess.Popen[str], ready: Path, line: Say) -> None:
    assert process.stdout is not None  # noqa: S101 - PIPE above
    said = []
    for text in process.stdout:
        said.append(text.rstrip())
        if ready.exists():
            return
        if " ready" in text:
            line(text.rstrip())
    raise SetupError("`trace up` ended before it was ready", hint="\n".join(said[-5:]))


def _expect(so: bool, promise: str) -> None:
    if not so:
        raise SetupError(f"the demo expected that {promise}, and it is not so")


def _trusting(ca: str) -> Any:
    import ssl

    return ssl.create_default_context(cafile=ca)
