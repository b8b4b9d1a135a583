"""The start of every Python that Spark starts on this machine: see `spark/python_start/sitecustomize.py`."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import SECONDS
from tracelake.spark.configuration import SparkOptions, environment, spark_home
from tracelake.spark.java import Java

PLANNER = "pyspark.sql.worker.data_source_pushdown_filters"
PROGRAM = """
import json, sys, pyspark
zips = [entry for entry in sys.path_importer_cache if entry.endswith((".zip", ".jar")) and "pyspark" in entry]
print(json.dumps([pyspark.__file__, zips, getattr(sys, "site_runs", 0), "pyarrow" in sys.modules]))
"""


def as_spark_starts_it(folder: Path, *more: Path) -> dict[str, str]:
    """Spark puts its own path first."""
    java = Java(folder, "17", "PATH", folder)
    given = environment(SparkOptions(folder), java, os.environ, folder)
    packed = [str(path) for path in (spark_home() / "python" / "lib").glob("*.zip")]
    assert packed, "Spark still packs its Python code"
    return {**given, "PYTHONPATH": os.pathsep.join([*packed, given["PYTHONPATH"], *map(str, more)])}


def test_sparks_python_code_is_imported_from_files_and_no_zip_is_cached(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.site_runs = getattr(sys, 'site_runs', 0) + 1")
    env = as_spark_starts_it(tmp_path, tmp_path)
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=True)
    where, zips, site_runs, arrow = json.loads(done.stdout)
    assert Path(where) == spark_home() / "__init__.py"
    assert zips == []
    assert site_runs == 1, "the machine's own sitecustomize is run, once"
    assert not arrow, "only who plans reads loads what that takes"
    assert done.stderr == ""


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_the_planner_of_reads_is_forked_with_arrow_loaded(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "pyspark.daemon", PLANNER]
    env = as_spark_starts_it(tmp_path)
    with subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as daemon:
        assert daemon.stdin is not None
        assert daemon.stdout is not None
        assert struct.unpack(">i", daemon.stdout.read(4))[0] > 0, "it listens, and forks from now on"
        assert "libarrow" in Path(f"/proc/{daemon.pid}/maps").read_text()
        daemon.stdin.close()
        daemon.wait(SECONDS)
