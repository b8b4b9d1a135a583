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
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from trace_platform.errors import SetupError
from trace_platform.lite.guard import members_of
from trace_platform.lite.home import Home
from trace_platform.tls import client_context

Say = Callable[[str], None]

LAST_BLOCK = 19_999
PIECES, RANGES = 400, 20
"""What 20,000 blocks are in pieces of 50 and ranges of 1,000: counted by hand, not by the code that is shown."""

DAG = """\
name: ranges
defaults: {runtime: dispatcher}
jobs:
  - {name: ask, operator: noop, source: {kind: manual}}
  - {name: cut, operator: range_splitter, config: {chunk: 50}, inputs: [{from: {job: ask}}]}
  - {name: join, operator: range_aggregator, config: {size: 1000}, inputs: [{from: {job: cut}}]}
  - {name: note, operator: noop, runtime: ecs_platform, inputs: [{from: {job: join}}]}
publish: {asked: {job: ask}, pieces: {job: cut}, joined: {job: join}}
"""


@dataclass(frozen=True)
class Running:
    """A `trace up` of this demo's own."""

    home: Home
    ready: dict[str, Any]

    def get(self, door: str, path: str, token: str | None = None) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        url = self.ready["endpoints"][door] + path
        return httpx.get(url, headers=headers, verify=client_context(Path(self.ready["ca_file"])), timeout=20)

    def trace(self, *verb: str) -> Any:
        """A verb of the command line, as anybody would type it; its JSON."""
        argv = [sys.executable, "-m", "trace_platform", *verb, "--home", str(self.home.root), "--json"]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SetupError(f"`trace {' '.join(verb)}` failed", hint=done.stdout + done.stderr)
        return json.loads(done.stdout)

    def process(self, name: str) -> dict[str, Any]:
        everyone = json.loads(self.home.status.read_text())["processes"]
        found: dict[str, Any] = next(one for one in everyone if one["name"] == name)
        return found


def demo(heading: Say, line: Say) -> None:
    """Raises if anything shown is not as it should be."""
    folder = Path(tempfile.mkdtemp(prefix="trace-demo-"))
    try:
        _show(Home(folder / "home"), heading, line)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _show(home: Home, heading: Say, line: Say) -> None:
    heading("Starting from nothing: two Postgres servers, six processes, certificates and keys")
    with _up(home, line) as system:
        _knock(system, heading, line)
        _run(system, heading, line)
        _explain(system, heading, line)
        families = {int(one["pid"]) for one in json.loads(home.status.read_text())["processes"]}
    heading("Stopped, and started once more on the same home (without Spark)")
    _expect(not members_of(families), "nothing is left running")
    line("nothing was left running")
    with _up(home, line, "--without", "worker,sink,query,scheduler") as system:
        counts = _counts(system)
        _expect(counts == {"cut": 1, "join": PIECES, "note": RANGES}, "every task is still there, once")
        line(f"every task is still there: {counts['cut']} cut, {counts['join']} join, {counts['note']} note")


def _knock(system: Running, heading: Say, line: Say) -> None:
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
        raise SetupError("a door opened to a caller who does not know its CA")
    stranger = system.get("gateway", "/v1/me")
    _expect(stranger.status_code == httpx.codes.UNAUTHORIZED, "no token, no answer")
    line(f"/v1/me, no token     {stranger.status_code} {stranger.json()['error']['message']}")
    me = system.get("gateway", "/v1/me", system.ready["user_token"]).json()
    line(f"/v1/me, dev token    200 {me['email']}, {me['role']} of organisation {me['org_slug']!r}")


def _run(system: Running, heading: Say, line: Say) -> None:
    heading(f"A DAG: blocks 0 to {LAST_BLOCK:,}, cut into {PIECES} pieces, put together into {RANGES} ranges")
    file = system.home.root.parent / "ranges.yaml"
    file.write_text(DAG)
    deployed = system.trace("dag", "deploy", str(file), "--activate")
    line(f"deployed and activated: {', '.join(deployed['deployed']['jobs'])}")
    system.trace("trigger", "ranges", "ask", "--range", f"0-{LAST_BLOCK}")
    line(f"triggered with the range 0-{LAST_BLOCK}")
    _kill_dispatcher(system, line)
    began = time.monotonic()
    while (counts := _counts(system)) != {"cut": 1, "join": PIECES, "note": RANGES}:
        _expect(time.monotonic() - began < 60, f"all is done once; so far {dict(counts)}")  # noqa: PLR2004 - a minute
        time.sleep(0.2)
    line(f"done, nothing lost and nothing twice: {counts['join']} pieces joined in the Dispatcher,")
    line(f"  {counts['note']} full ranges noted by the worker: queue, claim, lease, token, completion")


def _counts(system: Running) -> dict[str, int]:
    """Completed tasks by job, each partition counted once per task: a double would show."""
    tasks = system.trace("task", "list", "--dag", "ranges", "--limit", "500", "--status", "Completed")["tasks"]
    return dict(Counter(task["job"] for task in tasks))


def _kill_dispatcher(system: Running, line: Say) -> None:
    old = int(system.process("dispatcher")["pid"])
    os.kill(old, signal.SIGKILL)
    began = time.monotonic()
    while (now := system.process("dispatcher"))["state"] != "ready" or now["pid"] == old:
        _expect(time.monotonic() - began < 60, "the Dispatcher comes back")  # noqa: PLR2004 - a minute is far too long
        time.sleep(0.05)
    seconds = time.monotonic() - began
    line(f"kill -9 of the Dispatcher: process {old} is gone, {now['pid']} took over after {seconds:.1f} s")


def _explain(system: Running, heading: Say, line: Say) -> None:
    tasks = system.trace("task", "list", "--dag", "ranges", "--job", "note", "--limit", "100")["tasks"]
    task = next(task for task in tasks if task["partitions"] == ["1000-1999"])
    heading(f"trace why {task['id']}")
    for step in system.trace("why", task["id"])["steps"]:
        line(f"{step['kind']:<8} {step['sentence']}")
    heading("The worker, which noted the ranges, holds a warm Spark session")
    line(system.process("worker")["status"])


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
