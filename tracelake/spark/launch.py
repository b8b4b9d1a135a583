"""Starting Spark's JVM: its command line is Spark's own, its class path is put in order.

Spark's start script asks a small Java program of Spark for the command and runs it. We ask the same program and run it
ourselves: no shell has to read our paths, and the class path is the same at every start, each jar once and by name.
(Spark's own names one jar twice and leaves the order of the others to the file system; Java 21 then refuses the class
archive, and which of two classes wins could differ from machine to machine.)

The jars are named as seen from the JVM's working directory, through a link there: the class path is then the same
wherever Trace is installed, and so is the class archive, which Java accepts for the class path it was made with alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tracelake.errors import SetupError
from tracelake.spark.configuration import SparkOptions, spark_home

JARS: Final = "jars"
"""The link in a JVM's working directory."""
ASK_SECONDS: Final = 60

TIE: Final = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, int(signal.SIGKILL), 0, 0, 0)  # PR_SET_PDEATHSIG: it outlives the exec
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""
"""In a program of its own and not between fork and exec, where a process with threads must not run Python."""


def launch(options: SparkOptions, environment: Mapping[str, str], folder: Path) -> subprocess.Popen[bytes]:
    argv = _command(options, environment, folder)
    if options.killed_when_orphaned and sys.platform == "linux":
        argv = [sys.executable, "-I", "-S", "-c", TIE, str(os.getpid()), *argv]
    try:
        return subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,  # held open until we end, and read by the JVM for that reason
            stdout=sys.__stderr__.fileno() if sys.__stderr__ else subprocess.DEVNULL,
            cwd=folder / "work",
            env=dict(environment),
            process_group=0,  # Ctrl-C in a terminal is for this process, which stops its session in order
        )
    except OSError as error:
        raise SetupError(f"Spark's Java does not start: {error.strerror}", where=argv[0]) from error


def end(jvm: subprocess.Popen[bytes], seconds: float) -> None:
    """Close the pipe, which is the word to go; then do not wait for ever."""
    if jvm.stdin is not None:
        jvm.stdin.close()
    try:
        jvm.wait(seconds)
    except subprocess.TimeoutExpired:
        jvm.kill()
        jvm.wait()


def _command(options: SparkOptions, environment: Mapping[str, str], folder: Path) -> list[str]:
    asked = ["--properties-file", str(folder / "spark.properties")]
    if not options.is_local:
        # A cluster's keeper configures drivers by spark-env.sh and spark-defaults.conf: Spark's own script reads them.
        return [str(spark_home() / "bin" / "spark-submit"), *asked, "--load-spark-defaults", "pyspark-shell"]
    argv = _ask_spark(environment, [*asked, "pyspark-shell"])
    place = argv.index("-cp") + 1
    (folder / "work" / JARS).symlink_to(options.jars or spark_home() / "jars")
    argv[place] = class_path(argv[place])
    return argv


def _ask_spark(environment: Mapping[str, str], asked: list[str]) -> list[str]:
    launcher = next((spark_home() / "jars").glob("spark-launcher_*.jar"))
    scala = launcher.name.removeprefix("spark-launcher_").partition("-")[0]
    java = Path(environment["JAVA_HOME"]) / "bin" / "java"
    argv = [str(java), "-Xmx128m", "-Xshare:auto", "-XX:-UsePerfData", "-XX:TieredStopAtLevel=1", "-cp", str(launcher)]
    argv += ["org.apache.spark.launcher.Main", "org.apache.spark.deploy.SparkSubmit", *asked]
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
        said = getattr(error, "stderr", None) or str(error).encode()
        raise SetupError(f"Spark's launcher failed: {said.decode(errors='replace').strip()}", where=argv[0]) from error
    # One empty argument and a line end, then the command, each word ended by a zero byte.
    return [word.decode() for word in done.stdout.partition(b"\0\n")[2].split(b"\0")[:-1]]


def class_path(given: str) -> str:
    """Each existing entry once, wildcards written out by name, Spark's own jars through the link."""
    entries: dict[str, None] = {}
    for entry in given.split(":"):
        path = Path(entry)
        found = sorted(path.parent.glob("*.jar")) if path.name == "*" else [path] if path.exists() else []
        entries |= dict.fromkeys(map(_as_seen_from_work, found))
    return ":".join(entries)


def _as_seen_from_work(path: Path) -> str:
    return f"{JARS}/{path.name}" if path.parent == spark_home() / "jars" else str(path)
