"""Spark outside of Trace's processes, from the pip package: a standalone cluster or a Connect server; `trace worker`.

They know nothing of this checkout: they are started in a folder of their own with a bare environment, and their Python
has what Trace needs, but not Trace.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.support import ROOT
from tests.support.identity.service_tokens import TOKENS
from tests.support.systems.walk import Walk
from tests.support.waiting import SECONDS, wait_until
from tracelake.lite.network_ports import free_port
from tracelake.spark.configuration import spark_home
from tracelake.spark.java import find_java
from tracelake.spark.launch import TIE

LOOPBACK = ("--host", "127.0.0.1", "--webui-port", "0")
SMALL = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
"""JVMs that live for a minute are better off without the slow compiler."""
DEFAULTS = f"""
spark.executor.memory 512m
spark.executor.extraJavaOptions {SMALL}
"""
FOR_DRIVERS = f'export SPARK_SUBMIT_OPTS="{SMALL}"\n'
LOAD = """
name: load
defaults: {runtime: ecs_platform, max_attempts: 1}
jobs:
  - {name: go, operator: noop, runtime: dispatcher, source: {kind: manual}}
  - name: numbers
    operator: read_files
    config: {path: in, format: csv, columns: [id bigint], partition: whole}
    inputs: [{from: {job: go}}]
publish: {numbers: {job: numbers}}
"""
HOLD = """
name: hold
defaults: {runtime: ecs_platform, max_attempts: 1, heartbeat_interval_seconds: 1}
jobs:
  - {name: go, operator: noop, runtime: dispatcher, source: {kind: manual}}
  - name: held
    operator: python
    config: {function: "tests.support.spark.functions:held", args: {folder: FOLDER}, mode: full}
    inputs: [{from: {job: go}}, {from: {dataset: numbers}, trigger: false}]
publish: {held: {job: held}}
"""
"""`LOAD` makes the numbers whose rows `HOLD` holds in Python workers."""


@dataclass(frozen=True)
class SparkCluster:
    """The side of the test: its folder, the settings of drivers (SPARK_CONF_DIR), and its processes."""

    folder: Path
    java: Path
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def conf(self) -> Path:
        return self.folder / "conf"

    @property
    def python(self) -> Path:
        return self.folder / "python" / "bin" / "python"

    def master(self) -> str:
        self._daemon("master.Master", "--port", "0")
        return self._logged(r"Starting Spark master at (spark://127\.0\.0\.1:\d+)")

    def worker(self, master: str) -> int:
        """With one core; its process id."""
        place = self.folder / f"work{len(self.started)}"
        self._daemon("worker.Worker", "--cores", "1", "--memory", "600m", "--work-dir", str(place), master)
        return self.started[-1].pid

    def settings(self, master: str) -> dict[str, str]:
        """Of a `trace worker` that runs on this cluster."""
        return {
            "SPARK_CONF_DIR": str(self.conf),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "TRACE_SPARK__MASTER": master,
            "TRACE_SPARK__PYTHON": str(self.python),
            "TRACE_SPARK__DRIVER_MEMORY": "512m",
        }

    def shuffle_files(self) -> set[Path]:
        """The shuffled rows that executors store: `shuffle_<shuffle>_<map task>_0.data`."""
        return set((self.folder / "blocks").rglob("shuffle_*.data"))

    def connect_server(self, port: int | None = None) -> str:
        """With two cores of its own; on the port of one that has ended, if that is given."""
        conf = {
            "spark.master": "local[2]",
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(port or free_port()),
            "spark.ui.enabled": "false",
            "spark.sql.warehouse.dir": str(self.folder / "warehouse"),
        }
        options = [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")]
        server = "org.apache.spark.sql.connect.service.SparkConnectServer"
        self._start("768m", "spark-submit", *options, "--class", server)
        return "sc://" + self._logged(r"Spark Connect server started at: (\S+:\d+)")

    def end(self) -> None:
        family = [item for process in self.started for item in family_of(process.pid)]
        kill(family)
        for process in self.started:
            process.wait()

    def kill_last(self) -> None:
        """The one that was started last, and what it has started."""
        kill(family_of(self.started[-1].pid))
        self.started[-1].wait()

    def _daemon(self, kind: str, *options: str) -> None:
        self._start("192m", "spark-class", f"org.apache.spark.deploy.{kind}", *LOOPBACK, *options)

    def _start(self, heap: str, program: str, *options: str) -> None:
        argv = [str(spark_home() / "bin" / program), *options]
        with self._log(len(self.started)).open("wb") as log:
            # It dies with this process, however that ends.
            tied = [sys.executable, "-I", "-S", "-c", TIE, str(os.getpid()), *argv]
            env = {**self._environment(), "SPARK_DAEMON_MEMORY": heap}
            self.started.append(
                subprocess.Popen(tied, cwd=self.folder, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            )

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "JAVA_HOME": str(self.java),
            "SPARK_CONF_DIR": str(self.conf),
            "PYSPARK_PYTHON": str(self.python),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(self.folder / "blocks"),
            "SPARK_DAEMON_JAVA_OPTS": SMALL,
            "TMPDIR": str(self.folder),
        }

    def _log(self, number: int) -> Path:
        return self.folder / f"{number}.log"

    def _logged(self, pattern: str) -> str:
        """The first match in the log of the process started last."""
        log, process = self._log(len(self.started) - 1), self.started[-1]

        def found() -> re.Match[str] | None:
            said = log.read_text(errors="replace")
            match = re.search(pattern, said)
            assert match or process.poll() is None, said
            return match

        return wait_until(found, f"{pattern} is in {log}")[1]


@dataclass(frozen=True)
class ConnectServer:
    cluster: SparkCluster
    address: str

    def kill(self) -> None:
        self.cluster.kill_last()

    def start_again(self) -> None:
        assert self.cluster.connect_server(int(self.address.rpartition(":")[2])) == self.address


@contextmanager
def spark_cluster(folder: Path) -> Iterator[SparkCluster]:
    folder.mkdir()
    made = SparkCluster(folder, find_java(os.environ, folder / "cache").home)
    made.conf.mkdir()
    (made.conf / "spark-defaults.conf").write_text(DEFAULTS)
    (made.conf / "spark-env.sh").write_text(FOR_DRIVERS)
    _python_without_trace(folder / "python")
    try:
        yield made
    finally:
        made.end()
        shutil.rmtree(folder, ignore_errors=True)


def family_of(pid: int) -> list[psutil.Process]:
    """The process and all below it, from the top."""
    with suppress(psutil.NoSuchProcess):
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    return []


def executors_of(worker: int) -> list[psutil.Process]:
    """Those that a Spark worker has started."""
    return [item for item in family_of(worker)[1:] if any("ExecutorBackend" in word for word in _command_of(item))]


def _command_of(process: psutil.Process) -> list[str]:
    with suppress(psutil.NoSuchProcess):
        return process.cmdline()
    return []


def marks_in(folder: Path) -> list[str]:
    """What `functions.held` has written there: one for each partition that it holds."""
    return [mark.name for mark in folder.glob("held.*")]


def holding(marks: Path, pids: Iterable[int]) -> list[int]:
    """Those of the processes below which rows are held.

    Read upwards from who holds them: to find the children of a process, every process of the machine is read.
    """
    above = {process.pid for mark in marks_in(marks) for process in _ancestors(int(mark.split(".")[1]))}
    return [pid for pid in pids if pid in above]


def _ancestors(pid: int) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).parents()
    return []


def kill(family: list[psutil.Process]) -> None:
    for item in family:
        with suppress(psutil.NoSuchProcess):
            item.kill()
    _, alive = psutil.wait_procs(family, timeout=SECONDS)
    assert not alive


def _python_without_trace(folder: Path) -> None:
    """Like ours, and with the packages of our environment; but a .pth file in a folder that another one names is not
    read, and by such a file a checkout is installed.
    """
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    base = getattr(sys, "_base_executable", sys.executable)
    packages = folder / "lib" / version / "site-packages"
    packages.mkdir(parents=True)
    (packages / "packages.pth").write_text(f"{spark_home().parent}\n")
    (folder / "pyvenv.cfg").write_text(f"home = {Path(base).parent}\ninclude-system-site-packages = false\n")
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(base)
    asked = "from importlib.util import find_spec; assert find_spec('pyarrow') and not find_spec('tracelake')"
    subprocess.run([folder / "bin" / "python", "-c", asked], env={}, cwd=folder, check=True)


@asynccontextmanager
async def trace_worker(
    walk: Walk, folder: Path, dsns: tuple[str, str], more: Mapping[str, str], *, code: int = 0, log: Path | None = None
) -> AsyncIterator[int]:
    """Its process id; `dsns` are the queue's and the data database; its log is `log`, if that is given.

    At the end it is asked to stop, and has stopped in good order; with `code`, it has ended by itself.
    """
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "TRACE_HOME": str(folder / "worker"),
        "TRACE_QUEUE__DSN": dsns[0],
        "TRACE_DATA__DSN": dsns[1],
        "TRACE_OBJECTS__FOLDER": str(folder / "objects"),
        "TRACE_WORKER__FILES_FOLDER": str(folder / "files"),
        "TRACE_IDENTITY__SERVICE_TOKEN": TOKENS["worker"],
        "TRACE_ENDPOINTS__DISPATCHER_TASK": walk.listeners["dispatcher_task"],
        "TRACE_ENDPOINTS__DISPATCHER_INTERNAL": walk.listeners["dispatcher_internal"],
        "TRACE_TLS__CA": str(walk.ca),
        "TRACE_SPARK__QUICK_COMPILER": "true",  # a JVM that lives for a minute
        **more,
    }
    said = log.open("wb") if log else None
    worker = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tracelake", "worker"), cwd=folder, env=environment, stdout=said, stderr=said
    )
    family = family_of(worker.pid)
    try:
        yield worker.pid
        family = family_of(worker.pid)
        if not code:
            worker.send_signal(signal.SIGTERM)
        async with asyncio.timeout(SECONDS):
            assert await worker.wait() == code
    finally:
        kill(family_of(worker.pid) + family)
        await worker.wait()
        if said:
            said.close()
