"""`trace up` as a person runs it, driven by the command line, the files of its home and its listeners.

Nothing of the product is imported, so that the same code drives an installation of any version.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import IO, Any, Final, Self

import httpx

from tests.support.tls import trusting
from tests.support.waiting import SECONDS, wait_until

LIGHT: Final = "worker,sink,query,scheduler,delivery,runner"
"""What a system can do `--without` if it needs only a Dispatcher and a Gateway: it starts in seconds."""
SHORT_RUN: Final = {
    # Short enough for a test to see it, and long enough for a busy machine.
    "TRACE_UP__WATCHDOG_SECONDS": "15",
    # The second Spark starts with the first query, if there is one.
    "TRACE_QUERY__WARM_AFTER_SECONDS": "3600",
    "TRACE_SPARK__QUICK_COMPILER": "true",
    "TRACE_SPARK__SHUFFLE_PARTITIONS": "1",
}


class TraceUp:
    """One home. No setting of whoever runs the tests holds for it."""

    def __init__(
        self,
        home: Path,
        *options: str,
        env: Mapping[str, str] | None = None,
        package: str = "tracelake",
        ready_file: Path | None = None,
    ) -> None:
        self.home = home
        self.log = home.parent / "up.log"
        self.ready_file = ready_file or home / "run" / "all_ready.json"
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("TRACE_")} | dict(
            env or {}
        )
        self.argv = [sys.executable, "-m", package]
        self.options = [*options, *(["--ready-file", str(ready_file)] if ready_file else [])]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, output: int | None = None) -> dict[str, Any]:
        """Returns when everything is ready. Its lines go to `log`, or to this file descriptor."""
        self.launch(output)
        try:
            wait_until(lambda: self.ready_file.exists() or not self.is_running(), "trace up is ready")
            assert self.ready_file.exists(), self.output()
        except (TimeoutError, AssertionError):
            self.stop()  # what did not come up does not stay either
            raise
        return self.ready()

    def launch(self, output: int | None = None) -> None:
        argv = [*self.argv, "up", "--home", str(self.home), "--port-base", "0", *self.options]
        with self.log.open("ab") as log:
            to: int | IO[bytes] = log if output is None else output
            self.process = subprocess.Popen(argv, env=self.env, stdout=to, stderr=subprocess.STDOUT)

    @contextmanager
    def running(self) -> Iterator[Self]:
        """Started, and stopped when the block is left."""
        self.start()
        try:
            yield self
        finally:
            self.stop()

    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        assert self.process is not None
        if self.is_running():
            self.process.send_signal(how)
        return self.process.wait(SECONDS)

    def output(self) -> str:
        """What it has written."""
        return self.log.read_text(errors="replace")

    def ready(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.ready_file.read_text())
        return found

    def processes(self) -> dict[str, dict[str, Any]]:
        status = json.loads((self.home / "run" / "status.json").read_text())
        return {process["name"]: process for process in status["processes"]}

    def pids(self) -> set[int]:
        return {int(process["pid"]) for process in self.processes().values() if process["pid"]}

    def get(self, listener: str, path: str, **headers: str) -> httpx.Response:
        ready = self.ready()
        address, context = ready["endpoints"][listener] + path, trusting(ready["ca_file"])
        return httpx.get(address, headers=headers, verify=context, timeout=SECONDS)

    def me(self) -> dict[str, Any]:
        answer = self.get("gateway", "/v1/me", Authorization=f"Bearer {self.ready()['user_token']}")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def client(self) -> httpx.Client:
        """The first user's, of the public API."""
        ready = self.ready()
        context = trusting(ready["ca_file"])
        headers = {"authorization": f"Bearer {ready['user_token']}"}
        return httpx.Client(base_url=ready["endpoints"]["gateway"], headers=headers, verify=context, timeout=SECONDS)

    def progress(self, request: str) -> dict[str, Any]:
        """What has become of a trigger and of everything downstream of it."""
        with self.client() as client:
            answer = client.get(f"/v1/triggers/{request}", params={"downstream": "true"})
        if answer.status_code == HTTPStatus.SERVICE_UNAVAILABLE:  # the machine is busy: not known
            return {"ended": False, "succeeded": False}
        assert answer.is_success, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def trace(self, *command: str) -> subprocess.CompletedProcess[str]:
        """A command of the command line on this home."""
        argv = [*self.argv, *command, "--home", str(self.home)]
        return subprocess.run(argv, env=self.env, capture_output=True, text=True, check=False, timeout=SECONDS)


def short_run(folder: Path, *options: str, env: Mapping[str, str] | None = None) -> TraceUp:
    """In a home whose name has a space."""
    return TraceUp(folder / "my home", *options, env={**SHORT_RUN, **(env or {})}, ready_file=folder / "ready.json")


def trace_without_java(folder: Path, *options: str) -> TraceUp:
    """On a machine without Java, so that the one from PyPI is found.

    No class archive was made for that one: each start of Spark takes three times the work.
    """
    made = short_run(folder, *options, env=without_java(folder))
    made.env.pop("JAVA_HOME", None)
    return made


def without_java(folder: Path) -> dict[str, str]:
    """A PATH with everything of this machine but Java."""
    tools = folder / "bin"
    tools.mkdir(exist_ok=True)
    for place in ("/usr/bin", "/bin"):
        for program in Path(place).iterdir():
            link = tools / program.name
            if program.name != "java" and not link.exists() and not link.is_symlink():
                link.symlink_to(program)
    return {"PATH": str(tools)}


def new_folder() -> Iterator[Path]:
    """Not below pytest's: the paths of Postgres's sockets must be short."""
    folder = Path(tempfile.mkdtemp(prefix="trace-up-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def is_restarted(process: Mapping[str, Any], before: int) -> bool:
    """Whether it is ready again, with another process id than before."""
    return bool(process["state"] == "ready" and process["pid"] != before)


def memory_holds(pid: int, needle: bytes) -> bool:
    """Every readable, private page of a process."""
    with Path(f"/proc/{pid}/maps").open() as maps, Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in maps:
            span, mode = line.split()[:2]
            start, end = (int(edge, 16) for edge in span.split("-"))
            if mode.startswith("rw") and _region_holds(memory, start, end, needle):
                return True
    return False


def _region_holds(memory: Any, start: int, end: int, needle: bytes) -> bool:
    step = 64 * 1024 * 1024
    for at in range(start, end, step):
        try:
            memory.seek(at)
            if needle in memory.read(min(step + len(needle), end - at)):
                return True
        except (OSError, ValueError, OverflowError):
            return False
    return False
