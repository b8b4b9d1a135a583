"""Starts Spark's JVM, with Spark's own command line and an ordered class path.

Spark's start script asks a small Java program of Spark for the command and runs it. We run the same program and its
command ourselves: no shell parses our paths, and the class path is the same at every start, with each jar once and by
name. (Spark's own lists one jar twice and the others in the order of the file system; Java 21 then rejects the class
archive, and which of two classes wins could differ between machines.)

The jars are named relative to the JVM's working directory, through a link there: the class path is then the same
wherever Trace is installed, and so is the class archive, which Java accepts only for the class path that it was made
with.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from tracelake.errors import SetupError
from tracelake.spark.configuration import SparkOptions, spark_home

JARS: Final = "jars"
"""The link in a JVM's working directory."""
ASK_SECONDS: Final = 60
LOWEST: Final = 19
"""The lowest priority that the kernel has."""

TIE: Final = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, int(signal.SIGKILL), 0, 0, 0)  # PR_SET_PDEATHSIG: it outlives the exec
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""
"""A separate program, since a process with threads must not run Python between fork and exec."""


def launch(options: SparkOptions, environment: Mapping[str, str], folder: Path) -> subprocess.Popen[bytes]:
    argv = _command(options, environment, folder)
    if options.killed_when_orphaned and sys.platform == "linux":
        argv = [sys.executable, "-I", "-S", "-c", TIE, str(os.getpid()), *argv]
    try:
        jvm = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,  # held open until this process ends, which ends the JVM that reads it
            stdout=sys.__stderr__.fileno() if sys.__stderr__ else subprocess.DEVNULL,
            cwd=folder / "work",
            env=dict(environment),
            process_group=0,  # Ctrl-C in a terminal is handled by this process, which stops its session
        )
    except OSError as error:
        raise SetupError(f"Spark's Java does not start: {error.strerror}", where=argv[0]) from error
    if options.nice:
        _lower_priority(jvm.pid, options.nice)
    return jvm


def _lower_priority(group: int, by: int) -> None:
    """Of all threads in the group; those that they start later, and the Python workers, inherit it."""
    with suppress(ProcessLookupError):  # it has ended already, which its caller notices
        os.setpriority(os.PRIO_PGRP, group, min(LOWEST, os.getpriority(os.PRIO_PROCESS, 0) + by))


def end(jvm: subprocess.Popen[bytes], seconds: float) -> None:
    """Close the pipe, at which the JVM ends; kill it after a time."""
    if jvm.stdin is not None:
        jvm.stdin.close()
    try:
        jvm.wait(seconds)
    except subprocess.TimeoutExpired:
        jvm.kill()
        jvm.wait()


def _command(options: SparkOptions, environment: Mapping[str, str], folder: Path) -> list[str]:
    arguments = ["--properties-file", str(folder / "spark.properties")]
    if not options.is_local:
        # On a cluster spark-env.sh and spark-defaults.conf configure drivers: Spark's own script reads them.
        return [str(spark_home() / "bin" / "spark-submit"), *arguments, "--load-spark-defaults", "pyspark-shell"]
    argv = _spark_command(environment, [*arguments, "pyspark-shell"])
    place = argv.index("-cp") + 1
    (folder / "work" / JARS).symlink_to(options.jars or spark_home() / "jars")
    argv[place] = class_path(argv[place])
    return argv


def _spark_command(environment: Mapping[str, str], arguments: list[str]) -> list[str]:
    launcher = next((spark_home() / "jars").glob("spark-launcher_*.jar"))
    scala = launcher.name.removeprefix("spark-launcher_").partition("-")[0]
    java = Path(environment["JAVA_HOME"]) / "bin" / "java"
    argv = [str(java), "-Xmx128m", "-Xshare:auto", "-XX:-UsePerfData", "-XX:TieredStopAtLevel=1", "-cp", str(launcher)]
    argv += ["org.apache.spark.launcher.Main", "org.apache.spark.deploy.SparkSubmit", *arguments]
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            check=True,
            stdin=subprocess.DEVNULL,
            env={**environment, "SPARK_SCALA_VERSION": scala},
            timeout=ASK_SECONDS,
        )
    except (OSError, subprocess.SubprocessError) as error:
        message = getattr(error, "stderr", None) or str(error).encode()
        raise SetupError(
            f"Spark's launcher failed: {message.decode(errors='replace').strip()}", where=argv[0]
        ) from error
    # An empty argument and a line end, then the command, each word followed by a zero byte.
    return [word.decode() for word in done.stdout.partition(b"\0\n")[2].split(b"\0")[:-1]]


def class_path(paths: str) -> str:
    """Return each existing entry once, with wildcards expanded by name and Spark's jars through the link."""
    entries: dict[str, None] = {}
    for entry in paths.split(":"):
        path = Path(entry)
        jars = sorted(path.parent.glob("*.jar")) if path.name == "*" else [path] if path.exists() else []
        entries |= dict.fromkeys(map(_as_seen_from_work, jars))
    return ":".join(entries)


def _as_seen_from_work(path: Path) -> str:
    return f"{JARS}/{path.name}" if path.parent == spark_home() / "jars" else str(path)
