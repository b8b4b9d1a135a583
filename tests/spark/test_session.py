"""The session that operators use: its limits, its files, and how it ends when its process is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from tests.support import ROOT
from tests.support.spark.session import QUICK, end_shared
from tracelake.errors import JavaMissing, SettingsError, SetupError
from tracelake.query.spark.jvm import query_options
from tracelake.settings import Settings, SparkSettings, load_settings
from tracelake.sink.process import spark_options
from tracelake.spark import configuration
from tracelake.spark import session as session_module
from tracelake.spark.cluster import cluster_conf
from tracelake.spark.configuration import FIXED, SparkOptions, settings
from tracelake.spark.java import find_java
from tracelake.spark.launch import class_path
from tracelake.spark.session import is_alive, start_session, stop_session, warm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


SECRET = "not-for-the-command-line"


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    end_shared()
    folder = tmp_path_factory.mktemp("a höme")
    env = {**os.environ, "TRACE_STATE__DSN": SECRET, "SPARK_HOME": "/nowhere", "SPARK_CONF_DIR": "/nowhere"}
    options = SparkOptions(
        local_dir=folder / "spark",
        master="local[2]",
        driver_memory="768m",
        conf={**QUICK, "spark.trace.password": SECRET, "spark.trace.odd": 'a "b" \\ c\td=e:f #g ü'},
        environment={"TRACE_GIVEN": "yes"},
    )
    session = start_session(options, find_java(os.environ, folder / "cache"), env)
    yield session
    stop_session(session)
    left = sorted(path.name for path in (folder / "spark").iterdir())
    assert left == ["lock"], "a stopped session leaves nothing"


def test_warming_runs_both_engines_and_reports_its_duration(spark: SparkSession) -> None:
    report = warm(spark)
    assert report.rows == session_module.WARM_ROWS
    assert report.seconds == pytest.approx(report.jvm_seconds + report.python_seconds, rel=0.01)
    assert is_alive(spark)


def test_every_fixed_setting_is_set_also_in_new_sessions(spark: SparkSession) -> None:
    for session in (spark, spark.newSession()):
        assert {key: session.conf.get(key) for key in FIXED} == dict(FIXED)
        assert session.conf.get("spark.sql.shuffle.partitions") == str(os.cpu_count())
        assert session.conf.get("spark.ui.enabled") == "false"


def test_a_setting_reaches_spark_unchanged(spark: SparkSession) -> None:
    assert spark.conf.get("spark.trace.odd") == 'a "b" \\ c\td=e:f #g ü'


def test_sql_does_not_read_the_environment_or_settings_into_literals(spark: SparkSession) -> None:
    row = spark.sql("SELECT '${env:PATH} ${spark.trace.password} ${system:user.name}' AS output").first()
    assert row is not None
    assert row.output == "${env:PATH} ${spark.trace.password} ${system:user.name}"


def test_a_path_is_not_a_table(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.errors import AnalysisException

    (tmp_path / "rows.json").write_text('{"a": 1}\n')
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
        spark.sql(f"SELECT * FROM json.`{tmp_path / 'rows.json'}`").collect()  # noqa: S608 - a test's own path


def test_time_is_utc_on_both_sides(spark: SparkSession) -> None:
    row = spark.sql(
        "SELECT date_format(timestamp_seconds(0), 'yyyy-MM-dd HH:mm') AS jvm, current_timezone() AS zone"
    ).first()
    assert row is not None
    assert (row.jvm, row.zone) == ("1970-01-01 00:00", "UTC")
    assert worker_facts(spark)["zone"] == "UTC"


def test_jobs_share_the_machine_fairly(spark: SparkSession) -> None:
    pool = spark.sparkContext._jsc.sc().getPoolForName("default").get()
    assert pool.schedulingMode().toString() == "FAIR"


def test_workers_are_this_python_with_our_package_and_without_our_environment(spark: SparkSession) -> None:
    facts = worker_facts(spark)
    assert facts["python"] == sys.executable
    assert facts["package"] == str(ROOT / "tracelake" / "__init__.py")
    assert facts["given"] == "yes"
    assert SECRET not in facts["environment"].values()
    assert "" not in facts["path"]
    assert os.getcwd() not in facts["path"] or os.getcwd() == str(ROOT)  # noqa: PTH109 - compared as text
    assert folder_of(spark) in Path(facts["cwd"]).parents
    assert folder_of(spark) in Path(facts["temporary"]).parents


def test_no_secret_is_in_a_command_line_or_a_file_for_others(spark: SparkSession) -> None:
    java = jvm_of(spark)
    assert SECRET not in " ".join(java.cmdline())
    assert SECRET in (folder_of(spark) / "spark.properties").read_text()
    assert folder_of(spark).stat().st_mode & 0o077 == 0
    assert SECRET not in java.environ().values()
    assert not {"PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"} & set(os.environ)


def test_everything_listens_on_loopback_only(spark: SparkSession) -> None:
    warm(spark)
    java = jvm_of(spark)
    ends = [end for child in (java, *java.children(recursive=True)) for end in child.net_connections(kind="inet")]
    listening = {end.laddr.ip.removeprefix("::ffff:") for end in ends if end.status == psutil.CONN_LISTEN}
    assert listening == {"127.0.0.1"}


def test_all_that_spark_writes_is_in_its_folder(spark: SparkSession) -> None:
    warm(spark)
    spark.sql("CREATE TABLE kept USING parquet AS SELECT 1 AS a")
    assert list((folder_of(spark) / "warehouse").glob("kept/*.parquet"))
    spark.sql("DROP TABLE kept")
    java = jvm_of(spark)
    written = {
        open_file.path
        for child in (java, *java.children(recursive=True))
        for open_file in child.open_files()
        if getattr(open_file, "mode", "r") != "r"
    }
    assert all(Path(path).is_relative_to(folder_of(spark)) for path in written if not path.startswith("/dev/")), written


def test_the_handler_of_ctrl_c_is_restored(spark: SparkSession) -> None:
    assert is_alive(spark)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert os.getpgid(jvm_of(spark).pid) != os.getpgrp(), "a terminal's Ctrl-C does not reach the JVM"
    assert os.getsid(jvm_of(spark).pid) == os.getsid(0), "and who ends our session ends it too"


def test_a_process_has_one_session(spark: SparkSession, tmp_path: Path) -> None:
    assert is_alive(spark)
    with pytest.raises(SetupError, match="already"):
        start_session(SparkOptions(local_dir=tmp_path), find_java(os.environ, tmp_path), os.environ)


@pytest.mark.parametrize("key", sorted(FIXED))
def test_a_fixed_setting_cannot_be_changed(tmp_path: Path, key: str) -> None:
    options = SparkOptions(local_dir=tmp_path, conf={key: "something else"})
    with pytest.raises(SettingsError, match="must stay") as refused:
        start_session(options, None, {})
    assert refused.value.where == f"spark.conf.{key}"


def test_impossible_options_are_refused_before_a_start(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="comma"):
        start_session(SparkOptions(local_dir=tmp_path / "a,b"), None, {})
    with pytest.raises(JavaMissing):
        start_session(SparkOptions(local_dir=tmp_path), None, {})
    assert not list(tmp_path.iterdir())


def test_the_error_for_connect_without_its_packages_says_what_to_install(tmp_path: Path) -> None:
    """In a separate process: pyspark ends one whose main module has no file, which it takes for its own tests."""
    code = (
        "import pathlib, sys\n"
        "sys.modules['grpc'] = None\n"
        "from tracelake.errors import SetupError\n"
        "from tracelake.spark.configuration import SparkOptions\n"
        "from tracelake.spark.session import start_session\n"
        "try:\n"
        "    start_session(SparkOptions(pathlib.Path(sys.argv[1]), remote='sc://127.0.0.1:1'), None, {})\n"
        "except SetupError as refused:\n"
        "    print(refused.message, '|', refused.hint)\n"
    )
    file = tmp_path / "ask.py"
    file.write_text(code)
    output = subprocess.run([sys.executable, file, tmp_path], capture_output=True, text=True, check=True)
    assert "not installed" in output.stdout
    assert "pip install tracelake" in output.stdout


def test_a_cluster_master_is_not_bound_to_loopback_and_keeps_the_clusters_variables(tmp_path: Path) -> None:
    java = find_java(os.environ, tmp_path)
    env = {"HADOOP_CONF_DIR": "/etc/hadoop", "SPARK_CONF_DIR": "/etc/spark", "TRACE_STATE__DSN": SECRET}
    for master, local in (("local", True), ("local[4]", True), ("spark://host:7077", False), ("yarn", False)):
        options = SparkOptions(local_dir=tmp_path, master=master)
        conf, given = settings(options, tmp_path), configuration.environment(options, java, env, tmp_path)
        assert ("spark.driver.bindAddress" in conf) == ("SPARK_LOCAL_IP" in given) == local
        assert (given.get("HADOOP_CONF_DIR") == "/etc/hadoop") == (not local)
        assert (given.get("SPARK_CONF_DIR") == "/etc/spark") == (not local)
        assert SECRET not in given.values()


def test_a_setting_of_executors_is_spelt_as_spark_does_and_what_is_unset_is_left_to_the_cluster() -> None:
    assert cluster_conf(SparkSettings(master="spark://host:7077")) == {}
    few = SparkSettings(master="k8s://https://host", max_executors=4, executor_idle_seconds=5, driver_host="driver")
    assert cluster_conf(few) == {
        "spark.driver.host": "driver",
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.minExecutors": "0",
        "spark.dynamicAllocation.maxExecutors": "4",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.executorIdleTimeout": "5s",
        "spark.dynamicAllocation.shuffleTracking.timeout": "5s",
    }
    pods = SparkSettings(
        master="k8s://https://host",
        executor_memory="2g",
        executor_cores=2,
        kubernetes_image="registry.example/x",
        kubernetes_namespace="trace",
        kubernetes_service_account="executor",
        kubernetes_pod_template=Path("/etc/pod.yaml"),
        kubernetes_driver_pod="worker-0",
    )
    assert cluster_conf(pods) == {
        "spark.executor.memory": "2g",
        "spark.executor.cores": "2",
        "spark.kubernetes.container.image": "registry.example/x",
        "spark.kubernetes.namespace": "trace",
        "spark.kubernetes.authenticate.executor.serviceAccountName": "executor",
        "spark.kubernetes.executor.podTemplateFile": "/etc/pod.yaml",
        "spark.kubernetes.driver.pod.name": "worker-0",
    }


@pytest.mark.parametrize("process", [spark_options, query_options])
def test_the_sink_and_queries_keep_the_settings_of_executors(
    process: Callable[[Settings], SparkOptions], tmp_path: Path
) -> None:
    env = {"TRACE_SPARK__MASTER": "spark://host:7077", "TRACE_SPARK__EXECUTOR_MEMORY": "2g"}
    assert process(load_settings(env, home=tmp_path)).conf["spark.executor.memory"] == "2g"


def test_the_class_path_names_each_jar_once_and_in_order(tmp_path: Path) -> None:
    for name in ("b.jar", "a.jar", "slf4j-api-2.jar", "not-a-jar.txt"):
        (tmp_path / name).touch()
    given = f"{tmp_path}/conf:{tmp_path}/slf4j-api-2.jar:{tmp_path}/*:{tmp_path}"
    assert class_path(given) == f"{tmp_path}/slf4j-api-2.jar:{tmp_path}/a.jar:{tmp_path}/b.jar:{tmp_path}"


def test_sparks_jars_have_the_same_order_wherever_it_is_installed() -> None:
    """Java accepts a class archive only for the class path that it was made with."""
    named = class_path(f"{configuration.spark_home()}/jars/*").split(":")
    assert len(named) > 100
    assert all(item.startswith("jars/") for item in named)


def look(batches: Iterator[Any]) -> Iterator[Any]:
    import tempfile

    import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]

    import tracelake

    for _ in batches:
        pass
    facts = {
        "python": sys.executable,
        "package": tracelake.__file__,
        "environment": dict(os.environ),
        "given": os.environ.get("TRACE_GIVEN"),
        "path": sys.path,
        "cwd": str(Path.cwd()),
        "temporary": tempfile.gettempdir() + "/x",
        "zone": datetime.now(UTC).astimezone().tzname(),
    }
    yield pa.RecordBatch.from_pylist([{"facts": json.dumps(facts)}])


def worker_facts(spark: SparkSession) -> Mapping[str, Any]:
    row = spark.range(1, numPartitions=1).mapInArrow(look, "facts string").first()
    assert row is not None
    facts: Mapping[str, Any] = json.loads(row.facts)
    return facts


def folder_of(spark: SparkSession) -> Path:
    return next(running.run.folder for running in session_module._running if running.session is spark)


def jvm_of(spark: SparkSession) -> psutil.Process:
    return psutil.Process(next(running.jvm.pid for running in session_module._running if running.session is spark))
