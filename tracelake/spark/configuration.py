"""Spark's settings, Java's options and the environment variables of a session.

Spark takes much from its surroundings (working directory, environment, `spark-defaults.conf`, `/tmp`). Here all of that
is set explicitly, so a session is the same wherever it is started.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tracelake.errors import SettingsError
from tracelake.spark.java import Java

FIXED_SQL: Final[Mapping[str, str]] = {
    # `${env:HOME}` inside a string literal would give any SQL access to the environment.
    "spark.sql.variable.substitute": "false",
    # Second line of defence: parquet.`/path` is not a table.
    "spark.sql.runSQLOnFiles": "false",
    # Without it a Python data source that defines pushFilters fails.
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
}
"""Our code relies on these: no setting may change them. Spark Connect takes them too."""

FIXED: Final[Mapping[str, str]] = {
    **FIXED_SQL,
    "spark.scheduler.mode": "FAIR",  # a small task must not wait for all of a large one
    "spark.sql.catalogImplementation": "in-memory",  # no Hive, so no metastore_db and no derby.log
    "spark.ui.showConsoleProgress": "false",
}

INHERITED: Final = ("PATH", "HOME", "USER", "LOGNAME", "LD_LIBRARY_PATH")
INHERITED_FOR_CLUSTERS: Final = (
    *("SPARK_CONF_DIR", "SPARK_LOCAL_IP", "SPARK_LOCAL_HOSTNAME", "SPARK_PUBLIC_DNS", "SPARK_DIST_CLASSPATH"),
    *("HADOOP_CONF_DIR", "HADOOP_USER_NAME", "YARN_CONF_DIR", "KUBECONFIG"),
    *("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "KRB5CCNAME", "KRB5_CONFIG"),
)

UNSAFE: Final = r"[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u00ad\\u061c\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\ufeff]"
"""The control characters of `domain/text/escape_controls.py`. Spark's log shows a `?` for each."""
LOGGING: Final = """\
# Written by Trace: what a person should see, on standard error, and nothing else.
status = error
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.alwaysWriteExceptions = false
appender.stderr.layout.pattern = %replace{%d{yyyy-MM-dd'T'HH:mm:ss.SSS'Z'}{UTC} %p spark %c{1}: %m%n%ex}{UNSAFE}{?}
# There is no native Hadoop library in the wheel, and Spark does without.
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
# It warns of every pool that is not in a file; each task has one of its own.
logger.pools.name = org.apache.spark.scheduler.FairSchedulableBuilder
logger.pools.level = error
""".replace("UNSAFE", UNSAFE)

FAIR_POOLS: Final = """\
<?xml version="1.0"?>
<!-- FAIR alone is fair between pools; inside a pool it is first come, first served unless the pool says otherwise. -->
<allocations>
  <pool name="default"><schedulingMode>FAIR</schedulingMode><weight>1</weight><minShare>0</minShare></pool>
</allocations>
"""


QUICK_COMPILER: Final = ("-XX:TieredStopAtLevel=1",)
QUICK_PLANS: Final[Mapping[str, str]] = {
    # Generated Java code pays only when many rows go through it.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
CHOSEN_COLLECTOR: Final = re.compile(r"-XX:\+Use\w+GC")
"""Java refuses to start with two of them."""
SLOW_COMPILER: Final = (
    # Java's second compiler starts with methods that ran ten times as often as by default. Code that runs for every row
    # gets there in a moment; the code that a start runs a few thousand times is not compiled, which saves a quarter of
    # the work of a start.
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
)


@dataclass(frozen=True)
class SparkOptions:
    """What a process chooses about its Spark; the rest is fixed here."""

    local_dir: Path
    """The folder for all that Spark writes: shuffles, spills, temporary files, the warehouse."""
    master: str = "local[*]"
    remote: str | None = None
    """A Spark Connect address (`sc://...`); then there is no JVM here, and `master` is ignored."""
    app_name: str = "trace"
    driver_memory: str = "1g"
    shuffle_partitions: int | None = None
    """None: one per core in local mode (Spark's default of 200 costs seconds there); on a cluster, Spark's default."""
    ui: bool = False
    python: str = sys.executable
    """The Python of the workers; on a cluster, its path there."""
    class_archive: Path | None = None
    """Made by `class_archive.py`, for a quicker start. None: that of the installation, if it has one. Java ignores a
    missing or damaged one."""
    jars: Path | None = None
    """The folder of Spark's jars if it is not pyspark's, for making the archive."""
    quick_compiler: bool = False
    """For a JVM that processes few rows: warm with half the work, and two to three times slower per row. Its plans run
    without generated Java code."""
    conf: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    """More variables for the JVM and the Python workers, which do not inherit ours."""
    nice: int = 0
    """By how much the priority of the JVM and of its Python workers is lower than ours."""
    killed_when_orphaned: bool = False
    """The kernel kills the JVM when the thread that started it ends: it must be the main thread."""

    @property
    def is_local(self) -> bool:
        return self.master == "local" or self.master.startswith("local[")


def check(options: SparkOptions) -> None:
    for key, value in options.conf.items():
        if FIXED.get(key, value) != value:
            raise SettingsError(
                f"{key} must stay {FIXED[key]!r}: Trace relies on it",
                where=f"spark.conf.{key}",
                hint="remove the setting",
            )
    if "," in str(options.local_dir):
        raise SettingsError(
            f"Spark cannot use a folder with a comma in its name: {options.local_dir}",
            where="spark.local_dir",
            hint="choose another folder",
        )


def write_files(options: SparkOptions, folder: Path) -> None:
    """Write the files that Spark reads and make the folders that it writes to, for one session."""
    for name in ("blocks", "tmp", "warehouse", "work"):
        (folder / name).mkdir()
    (folder / "log4j2.properties").write_text(LOGGING)
    (folder / "pools.xml").write_text(FAIR_POOLS)
    # A file readable only by us, not `--conf`: command lines are visible to all users, and settings contain keys.
    (folder / "spark.properties").write_text(_properties(settings(options, folder)), encoding="utf-8")


def settings(options: SparkOptions, folder: Path) -> dict[str, str]:
    values = {
        "spark.master": options.master,
        "spark.app.name": options.app_name,
        "spark.driver.memory": options.driver_memory,
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.scheduler.allocation.file": f"file://{folder / 'pools.xml'}",  # Hadoop wants a space as it is, not %20
        "spark.ui.enabled": str(options.ui).lower(),
        "spark.submit.deployMode": "client",
    }
    partitions = options.shuffle_partitions or ((os.cpu_count() or 2) if options.is_local else None)
    if partitions is not None:
        values["spark.sql.shuffle.partitions"] = str(partitions)
    if options.is_local:
        values |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        values |= {"spark.python.daemon.module": "tracelake.spark.worker_daemon"}  # on a cluster it may be missing
    if options.quick_compiler:
        values |= QUICK_PLANS
    values |= {**options.conf, **FIXED}
    more = options.conf.get("spark.driver.extraJavaOptions", "")
    values["spark.driver.extraJavaOptions"] = f"{_java_options(options, folder)} {more}".strip()
    return values


def for_connect(options: SparkOptions) -> dict[str, str]:
    """Return what a client may set in its session on a Spark Connect server; the rest belongs to the server."""
    partitions = options.shuffle_partitions
    values = {} if partitions is None else {"spark.sql.shuffle.partitions": str(partitions)}
    return {**values, **options.conf, **FIXED_SQL}


def environment(options: SparkOptions, java: Java, env: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the variables of the JVM and of the Python workers that it starts."""
    inherited = INHERITED if options.is_local else INHERITED + INHERITED_FOR_CLUSTERS
    values = {name: env[name] for name in inherited if name in env}
    values.setdefault("PATH", os.defpath)
    values |= {
        "JAVA_HOME": str(java.home),
        "SPARK_HOME": str(spark_home()),
        "SPARK_CONNECT_MODE": "0",
        "PYSPARK_PYTHON": options.python,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": _python_path(options, env),
        "PYTHONHASHSEED": "0",  # workers must agree on the hash of a string
        "PYTHONSAFEPATH": "1",  # a file in the working directory must not become a module of a worker
        "SPARK_LOCAL_DIRS": str(folder / "blocks"),  # the setting spark.local.dir would make Spark warn
        "TMPDIR": str(folder / "tmp"),
        "TZ": "UTC",
        "LC_ALL": "C.UTF-8",  # else Java cannot name a file with an umlaut
    }
    if options.is_local:
        # Not the spark-defaults.conf of another installation.
        values |= {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_CONF_DIR": str(spark_home() / "conf")}
    return values | dict(options.environment)


def spark_home() -> Path:
    """Return the home of the installed pyspark: SPARK_HOME in the environment may be of another version."""
    import pyspark

    return Path(pyspark.__file__).absolute().parent


def _java_options(options: SparkOptions, folder: Path) -> str:
    java_options = [
        f"-Djava.io.tmpdir={folder / 'tmp'}",
        f"-Dlog4j2.configurationFile={(folder / 'log4j2.properties').as_uri()}",
        "-Duser.timezone=UTC",
        "-XX:-UsePerfData",  # it would leave a file in /tmp when killed
        "-XX:+ExitOnOutOfMemoryError",  # an ended JVM is noticed and replaced, one out of memory is not
        f"-XX:ErrorFile={folder.parent / 'java_crash_%p.log'}",
        # Java's own warnings go to standard output, which may be JSON for another program.
        "-Xlog:disable",
        "-Xlog:all=error:stderr",
    ]
    java_options += QUICK_COMPILER if options.quick_compiler else SLOW_COMPILER
    if options.quick_compiler and _chooses_collector(options):
        java_options.append(
            "-XX:+UseSerialGC"
        )  # there is so little garbage that several collector threads only slow it down
    if options.class_archive is not None and options.class_archive.exists():
        # Verified, so that a damaged one is ignored: a tenth of a second for all its classes.
        java_options += ["-Xshare:auto", "-XX:+VerifySharedSpaces", f"-XX:SharedArchiveFile={options.class_archive}"]
    return " ".join(quoted(option) for option in java_options)


def _chooses_collector(options: SparkOptions) -> bool:
    """Whether the collector is ours to choose: on a cluster the administrator's defaults may set one."""
    extra = options.conf.get("spark.driver.extraJavaOptions", "")
    return options.is_local and not CHOSEN_COLLECTOR.search(extra)


def quoted(option: str) -> str:
    """Quote as Spark's launcher expects: double quotes, and a backslash before a quote or a backslash."""
    escaped = option.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _properties(values: Mapping[str, str]) -> str:
    """Java's properties format; keys are Spark's and need no escape."""
    escapes = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return "".join(f"{key}={''.join(escapes.get(c, c) for c in value)}\n" for key, value in values.items())


def _python_path(options: SparkOptions, env: Mapping[str, str]) -> str:
    """Return the path of this package, which a worker imports our functions from, installed or in a checkout."""
    here = Path(__file__).absolute()
    ours = [str(here.parents[2])]
    if options.is_local:  # on a cluster there is no such folder
        ours.insert(0, str(here.parent / "python_start"))
    others = [str(Path(entry).absolute()) for entry in env.get("PYTHONPATH", "").split(os.pathsep) if entry]
    return os.pathsep.join([*ours, *others])
