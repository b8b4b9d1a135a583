"""Starts, warms and stops the one Spark session of a process.

A session takes seconds to start and its first jobs seconds more, so a process has one, and its tasks are threads that
use it. All files of Spark are in a folder below `local_dir`. Those of a killed run are removed at the next start.

The JVM reads from a pipe that this process holds: however this process ends, the pipe closes, and the JVM and its
Python workers end.
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
from tracelake.spark.tags import is_classic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START_SECONDS: Final = 120
STOP_SECONDS: Final = 20
WARM_ROWS: Final = 10_000
DYING_SECONDS: Final = 2.0
"""A killed JVM's connections are closed a moment before its process has ended."""
UNKNOWN_SESSION: Final = "INVALID_HANDLE.SESSION"
"""A restarted Spark Connect server, or one that dropped an idle session, does not know our session."""


@dataclass(frozen=True)
class WarmReport:
    """What warming ran, and how long it took."""

    seconds: float
    jvm_seconds: float
    python_seconds: float
    rows: int


def start_session(options: SparkOptions, java: Java | None, env: Mapping[str, str]) -> SparkSession:
    """Start the session. `env`: where inherited variables come from; Connect needs no `java`."""
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
    """Run a job with a shuffle in the JVM and one through Arrow in every Python worker, before the first task does."""
    began = time.monotonic()
    session.range(WARM_ROWS).selectExpr("id % 10 AS id").groupBy("id").count().collect()
    between = time.monotonic()
    rows = session.range(WARM_ROWS).mapInArrow(_unchanged, "id long").count()
    ended = time.monotonic()
    return WarmReport(ended - began, between - began, ended - between, rows)


def is_alive(session: SparkSession, seconds: float = 0) -> bool:
    """Whether the session's JVM runs: it may have been killed, or have run out of memory.

    `seconds`: how long to wait for a JVM that is about to end.
    """
    own = [running for running in _running if running.session is session]
    return all(_runs(running.jvm, seconds) for running in own)


def _runs(jvm: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        jvm.wait(seconds)
    except subprocess.TimeoutExpired:
        return True
    return False


def is_lost(spark: SparkSession, error: BaseException) -> bool:
    """Whether the error came from the loss of Spark itself, and not only from a job: then the task is not at fault."""
    if is_classic(spark):
        return not is_alive(spark, DYING_SECONDS if _is_cut_off(error) else 0)
    remote: Any = spark
    # A session that finds another server behind its address closes itself.
    return remote.is_stopped or any(_is_unknown_session(cause) for cause in _causes(error))


def stop_session(session: SparkSession, seconds: float = STOP_SECONDS) -> None:
    """Stop the session, its JVM and its workers, and remove its files. Harmless when the JVM has ended."""
    with _one_at_a_time:
        if is_alive(session):
            with suppress(Exception):  # py4j raises many errors when the JVM ends during a call
                session.stop()
        for running in [running for running in _running if running.session is session]:
            _running.remove(running)
            with suppress(Exception):  # the JVM may have ended
                running.gateway.shutdown()
            _reset_pyspark()
            end(running.jvm, seconds)
            running.run.remove()


def kill_session(session: SparkSession) -> None:
    """Kill the session's JVM, in which a job runs that cannot be interrupted; then as `stop_session`."""
    for running in [running for running in _running if running.session is session]:
        running.jvm.kill()
        running.jvm.wait()
    stop_session(session)


def jvm_of(session: SparkSession) -> int | None:
    """Return the process id of the session's JVM; None if it was not started here."""
    return next((running.jvm.pid for running in _running if running.session is session), None)


@dataclass(frozen=True)
class _Run:
    """The folder of a session, locked while its process runs."""

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
"""At most one: a JVM has one Spark context, and pyspark keeps its gateway in a class attribute."""


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
        _reset_pyspark()
        end(jvm, 0)
        raise
    return _Running(session, gateway, jvm, run)


def _gateway(jvm: subprocess.Popen[bytes], file: Path) -> Any:
    """Wait until the JVM has written its port and secret to the file, and connect."""
    from pyspark.java_gateway import launch_gateway

    deadline = time.monotonic() + START_SECONDS
    while not file.exists():
        if jvm.poll() is not None:
            raise SetupError(
                f"Spark's Java ended at start with code {jvm.returncode}; its last words are on standard error",
                where="spark.driver_memory",
                hint="check that setting and this machine's memory; run `trace doctor`",
            )
        if time.monotonic() > deadline:
            raise SetupError(f"Spark's Java did not answer within {START_SECONDS} s", hint="run `trace doctor`")
        time.sleep(0.02)
    port, length = struct.unpack_from(">ii", file.read_bytes())
    secret = file.read_bytes()[8 : 8 + length].decode()
    file.unlink()
    with _in_environ(PYSPARK_GATEWAY_PORT=str(port), PYSPARK_GATEWAY_SECRET=secret):
        return launch_gateway()  # type: ignore[no-untyped-call]


@contextmanager
def _in_environ(**values: str) -> Iterator[None]:
    """The only way to pass a running JVM to pyspark; removed at once, as child processes would inherit it."""
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
    """Return the first line of Java's error, without its stack."""
    cause = getattr(error, "java_exception", None)
    with suppress(Exception):
        return str(cause.toString() if cause is not None else error).splitlines()[0]
    return type(error).__name__


@contextmanager
def _own_interrupt_handler() -> Iterator[None]:
    """Restore the handler of Ctrl-C, which pyspark replaces when it starts in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _package(folder: Path) -> Path:
    """Write our package to a zip file, for executors on other machines."""
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
            hint="pip install tracelake; in a checkout: make setup",
        ) from error
    for key, value in configuration.for_connect(options).items():
        session.conf.set(key, value)
    with tempfile.TemporaryDirectory(prefix="trace-") as folder:
        session.addArtifacts(str(_package(Path(folder))), pyfile=True)
    return session


def _open_run(local_dir: Path) -> _Run:
    """Make and lock a new folder; remove folders of processes that have ended, whose locks are free."""
    try:
        local_dir = local_dir.absolute()
        local_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (local_dir / "lock").open("wb") as lock_all:
            fcntl.flock(lock_all, fcntl.LOCK_EX)  # no other process removes the folder before it is locked
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
    with suppress(OSError), (folder / "lock").open("ab") as lock:  # OSError: its process runs
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)


def _reset_pyspark() -> None:
    """Clear what pyspark keeps in its classes, so that a new session can start."""
    from pyspark.core.context import SparkContext
    from pyspark.sql import SparkSession

    SparkContext._active_spark_context = SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001 - no other way
    SparkSession._instantiatedSession = SparkSession._activeSession = None  # noqa: SLF001 - no other way


def _unchanged(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


def _is_cut_off(error: BaseException) -> bool:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    return any(isinstance(cause, Py4JError | OSError | EOFError) for cause in _causes(error))


def _is_unknown_session(error: BaseException) -> bool:
    from pyspark.errors import PySparkException

    if not isinstance(error, PySparkException):
        return False
    # In the middle of a response it is the reason within another error.
    reason = (error.getMessageParameters() or {}).get("error_type")
    return any((item or "").startswith(UNKNOWN_SESSION) for item in (error.getCondition(), reason))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
