"""The one Spark session of a process: started, warmed and ended here.

A session costs seconds to start and its first jobs seconds more, so a process keeps one and its tasks are threads in
it. Everything Spark writes for itself is in a folder of its own under `local_dir`; nothing is dropped where the process
was started. What a killed run left there is removed at the next start.

The JVM reads from a pipe that this process holds: however this process ends, the pipe closes and the JVM ends, and its
Python workers with it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import struct
import subprocess
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from tracelake.errors import JavaMissing, SetupError
from tracelake.spark import configuration
from tracelake.spark.archive_location import archive_for, installed_cache
from tracelake.spark.configuration import SparkOptions
from tracelake.spark.java import Java
from tracelake.spark.launch import end, launch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START_SECONDS: Final = 120
STOP_SECONDS: Final = 20
WARM_ROWS: Final = 10_000


@dataclass(frozen=True)
class WarmReport:
    """What warming did and took."""

    seconds: float
    jvm_seconds: float
    python_seconds: float
    rows: int


def start_session(options: SparkOptions, java: Java | None, env: Mapping[str, str]) -> SparkSession:
    """Start this process's session. `env` is where the few inherited variables come from; Connect needs no `java`."""
    configuration.check(options)
    if options.remote is not None:
        return _connect(options)
    if java is None:
        raise JavaMissing("a Spark session in this process needs Java", where="spark.master", hint="run `trace doctor`")
    if options.class_archive is None and options.is_local:
        options = replace(options, class_archive=archive_for(java, installed_cache()))
    with _one_at_a_time:
        if _running:
            raise SetupError("this process has a Spark session already", hint="share it, or use its newSession()")
        run = _open_run(options.local_dir)
        try:
            _running.append(_start(options, java, env, run))
        except BaseException:
            run.remove()
            raise
        return _running[0].session


def warm(session: SparkSession) -> WarmReport:
    """One job with a shuffle in the JVM, one through Arrow in every Python worker: a task's is then not the first."""
    began = time.monotonic()
    session.range(WARM_ROWS).selectExpr("id % 10 AS id").groupBy("id").count().collect()
    between = time.monotonic()
    rows = session.range(WARM_ROWS).mapInArrow(_unchanged, "id long").count()
    ended = time.monotonic()
    return WarmReport(ended - began, between - began, ended - between, rows)


def is_alive(session: SparkSession, seconds: float = 0) -> bool:
    """Whether the session's JVM runs: it may have been killed, or have ended itself for want of memory.

    One that is known to be about to end is given `seconds` for it.
    """
    mine = [running for running in _running if running.session is session]
    return all(_runs(running.jvm, seconds) for running in mine)


def _runs(jvm: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        jvm.wait(seconds)
    except subprocess.TimeoutExpired:
        return True
    return False


def stop_session(session: SparkSession, seconds: float = STOP_SECONDS) -> None:
    """End the session, its JVM and its workers, and remove its files. Harmless when the JVM is already dead."""
    with _one_at_a_time:
        if is_alive(session):
            with suppress(Exception):  # py4j raises what it likes when the JVM dies under it; what matters comes next
                session.stop()
        for running in [running for running in _running if running.session is session]:
            _running.remove(running)
            with suppress(Exception):  # there may be nobody to say goodbye to
                running.gateway.shutdown()
            _forget_session()
            end(running.jvm, seconds)
            running.run.remove()


def kill_session(session: SparkSession) -> None:
    """End the session's JVM at once, in which something runs that nothing else ends; the rest as `stop_session`."""
    for running in [running for running in _running if running.session is session]:
        running.jvm.kill()
        running.jvm.wait()
    stop_session(session)


def jvm_of(session: SparkSession) -> int | None:
    """The process id of the session's JVM; None if it was not started here."""
    return next((running.jvm.pid for running in _running if running.session is session), None)


@dataclass(frozen=True)
class _Run:
    """One session's folder, locked while its process lives."""

    folder: Path
    lock: IO[bytes]

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.lock.close()


@dataclass(frozen=True)
class _Running:
    session: SparkSession
    gateway: Any
    jvm: subprocess.Popen[bytes]
    run: _Run


_one_at_a_time = threading.RLock()
_running: list[_Running] = []
"""At most one: a JVM holds one Spark context, and pyspark keeps its gateway in a class attribute."""


def _start(options: SparkOptions, java: Java, env: Mapping[str, str], run: _Run) -> _Running:
    configuration.write_files(options, run.folder)
    gateway_file = run.folder / "gateway"
    environment = configuration.environment(options, java, env, run.folder)
    jvm = launch(options, {**environment, "_PYSPARK_DRIVER_CONN_INFO_PATH": str(gateway_file)}, run.folder)
    try:
        gateway = _gateway(jvm, gateway_file)
        session = _session(options, gateway)
        if not options.is_local:
            session.addArtifacts(str(_package(run.folder)), pyfile=True)
    except BaseException:
        _forget_session()
        end(jvm, 0)
        raise
    return _Running(session, gateway, jvm, run)


def _gateway(jvm: subprocess.Popen[bytes], told: Path) -> Any:
    """Wait until the JVM has written where it listens, and connect."""
    from pyspark.java_gateway import launch_gateway

    deadline = time.monotonic() + START_SECONDS
    while not told.exists():
        if jvm.poll() is not None:
            raise SetupError(
                f"Spark's Java ended at start with code {jvm.returncode}; its last words are on standard error",
                where="spark.driver_memory",
                hint="check that setting and this machine's memory; run `trace doctor`",
            )
        if time.monotonic() > deadline:
            raise SetupError(f"Spark's Java gave no answer within {START_SECONDS} s", hint="run `trace doctor`")
        time.sleep(0.02)
    port, length = struct.unpack_from(">ii", told.read_bytes())
    secret = told.read_bytes()[8 : 8 + length].decode()
    told.unlink()
    with _in_environ(PYSPARK_GATEWAY_PORT=str(port), PYSPARK_GATEWAY_SECRET=secret):
        return launch_gateway()  # type: ignore[no-untyped-call]


@contextmanager
def _in_environ(**values: str) -> Iterator[None]:
    """The only way to tell pyspark of a JVM that runs; for a moment, because children would inherit the secret."""
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            del os.environ[name]


def _session(options: SparkOptions, gateway: Any) -> SparkSession:
    from pyspark.core.context import SparkContext
    from pyspark.sql import SparkSession

    try:
        with _own_interrupt_handler():
            context = SparkContext(gateway=gateway)
    except Exception as error:
        raise SetupError(f"Spark did not start: {_reason(error)}", where="spark", hint="check its settings") from error
    context.pythonExec = options.python
    return SparkSession(context)


def _reason(error: Exception) -> str:
    """Java's sentence, asked for while the JVM is there to give it; not its stack."""
    cause = getattr(error, "java_exception", None)
    with suppress(Exception):
        return str(cause.toString() if cause is not None else error).splitlines()[0]
    return type(error).__name__


@contextmanager
def _own_interrupt_handler() -> Iterator[None]:
    """Give Ctrl-C back: pyspark takes it over when it starts in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _package(folder: Path) -> Path:
    """Our package, for executors elsewhere."""
    root = Path(__file__).absolute().parents[1]
    place = folder / f"{root.name}.zip"
    with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(root.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                archive.write(path, path.relative_to(root.parent))
    return place


def _connect(options: SparkOptions) -> SparkSession:
    try:
        from pyspark.sql import SparkSession

        session = SparkSession.builder.remote(str(options.remote)).appName(options.app_name).getOrCreate()
    except ImportError as error:
        raise SetupError(
            f"Spark Connect needs packages that are not installed: {error}",
            where="spark.remote",
            hint="pip install 'tracelake[connect]'; in a checkout: make setup EXTRAS=connect",
        ) from error
    for key, value in configuration.for_connect(options).items():
        session.conf.set(key, value)
    with tempfile.TemporaryDirectory(prefix="trace-") as folder:
        session.addArtifacts(str(_package(Path(folder))), pyfile=True)
    return session


def _open_run(local_dir: Path) -> _Run:
    """A new folder, locked; folders whose lock nobody holds belong to the dead and are removed."""
    try:
        local_dir = local_dir.absolute()
        local_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (local_dir / "lock").open("wb") as listener:
            fcntl.flock(listener, fcntl.LOCK_EX)  # nobody takes a folder that is just being made for a dead one
            for old in local_dir.glob("run-*"):
                _remove_if_dead(old)
            folder = Path(tempfile.mkdtemp(prefix="run-", dir=local_dir))
            lock = (folder / "lock").open("wb")
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise SetupError(
            f"Spark's folder cannot be used: {error.strerror}",
            where=str(local_dir),
            hint="make it writable, and free some disk if it is full",
        ) from error
    return _Run(folder, lock)


def _remove_if_dead(folder: Path) -> None:
    with suppress(OSError), (folder / "lock").open("ab") as lock:  # OSError: it lives
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)


def _forget_session() -> None:
    """Clear what pyspark keeps in its classes, so that a new session can start."""
    from pyspark.core.context import SparkContext
    from pyspark.sql import SparkSession

    SparkContext._active_spark_context = SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001 - no other way
    SparkSession._instantiatedSession = SparkSession._activeSession = None  # noqa: SLF001 - no other way


def _unchanged(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches
