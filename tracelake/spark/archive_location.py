"""Where Java's class-data archive for Spark is: in the installation, or in the cache of a home.

Most of a session's start is Java loading and verifying some fifteen thousand classes. Java can store them in one file
to be mapped: a start then takes half the processor time. `class_archive.py` makes the file, during setup or while a
worker runs.
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
    """Return the archive for this Java and this Spark from the first of these caches that has it."""
    places = (place_of(java, cache) for cache in caches)
    return next((place for place in places if place.exists()), None)


def installed_cache() -> Path:
    """The cache that all homes of this installation share."""
    return Path(sys.prefix) / "share" / "trace"


def place_of(java: Java, cache: Path) -> Path:
    """Return the path, named by everything that the archive depends on. Java checks more, but would only not use it."""
    facts = (
        str(java.runtime),
        java.version,
        version("pyspark"),
        class_path_of_spark(),
        (spark_home() / "jars").stat().st_mtime_ns,
    )
    return cache.absolute() / "classes" / f"{hashlib.sha256(repr(facts).encode()).hexdigest()[:24]}.jsa"


def class_path_of_spark() -> str:
    """In Spark's order (its logging first), then ours."""
    jars = spark_home() / "jars"
    return class_path(":".join([*map(str, jars.glob("slf4j-api-*.jar")), str(jars / "*")]))
