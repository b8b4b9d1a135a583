"""Where Java's class-data archive for Spark lies: with the installation that it belongs to, or in a home's cache.

Most of a session's start is Java reading and checking some fifteen thousand classes. Java can keep them in one file,
ready to be mapped: with it a start costs half the processor time. `class_archive.py` makes it, when Trace is set up or
while a worker runs.
"""

from __future__ import annotations

import hashlib
import sys
from importlib.metadata import version
from pathlib import Path

from tracelake.spark.configuration import spark_home
from tracelake.spark.java import Java
from tracelake.spark.launch import class_path


def archive_for(java: Java, *caches: Path) -> Path | None:
    """The archive in the first of these caches that fits this Java and this Spark, if it has been made."""
    places = (place_of(java, cache) for cache in caches)
    return next((place for place in places if place.exists()), None)


def installed_cache() -> Path:
    """What was prepared for every home of this installation."""
    return Path(sys.prefix) / "share" / "trace"


def place_of(java: Java, cache: Path) -> Path:
    """Named by all that it depends on. Java checks more, but cannot ask for a new one."""
    facts = (
        str(java.runtime),
        java.version,
        version("pyspark"),
        class_path_of_spark(),
        (spark_home() / "jars").stat().st_mtime_ns,
    )
    return cache.absolute() / "classes" / f"{hashlib.sha256(repr(facts).encode()).hexdigest()[:24]}.jsa"


def class_path_of_spark() -> str:
    """As Spark gives it (its logging first), in our order."""
    jars = spark_home() / "jars"
    return class_path(":".join([*map(str, jars.glob("slf4j-api-*.jar")), str(jars / "*")]))
