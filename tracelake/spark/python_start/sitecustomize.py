"""Run at the start of every Python that Spark starts on this machine, to make the start cheaper.

Spark adds its Python code to the path as a zip file. Modules of a zip are compiled in every process, which takes most
of a second of a core; the same files, as installed, take a fifth of that.

Reads from a Python data source are planned in processes that Spark forks from `pyspark.daemon`, one more for each
concurrent plan: no setting names another daemon, as there is for the workers that run tasks (`worker_daemon.py`). By
default each fork loads Arrow and our modules; here the daemon does, once, before it forks. Nothing that is loaded may
start a thread: threads do not survive a fork.

This folder is first on the path and hides a `sitecustomize` of the machine, which is therefore run from here.
"""

from __future__ import annotations

import gc
import os
import sys
from contextlib import suppress
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

PLANNERS = ("pyspark.sql.worker.create_data_source", "pyspark.sql.worker.data_source_pushdown_filters")
PLANS_WITH = ("pyspark.cloudpickle", "pyspark.sql.datasource", "pyarrow", "tracelake.data.postgres.source")


def leave_out_zips() -> None:
    """Whether Spark's zip also exists as files, in the folder that is SPARK_HOME."""
    home = os.environ.get("SPARK_HOME", "")
    if os.path.dirname(home) in sys.path and os.path.exists(os.path.join(home, "__init__.py")):  # noqa: PTH110,PTH118,PTH120 - as few imports as possible
        packed = os.path.join(home, "")  # noqa: PTH118 - as above
        sys.path[:] = [entry for entry in sys.path if not entry.startswith(packed)]
        # Before each task a worker invalidates its import caches, and Python would read the zip's directory again.
        for entry in [entry for entry in sys.path_importer_cache if entry.startswith(packed)]:
            del sys.path_importer_cache[entry]


def load_for_planning() -> None:
    asked_for = sys.orig_argv[-1]
    if "pyspark.daemon" not in sys.orig_argv or asked_for not in PLANNERS:
        return
    gc.disable()  # what is imported stays: to look for garbage in it, again and again, takes a fifth of the start
    for name in (asked_for, *PLANS_WITH):
        with suppress(ImportError):  # the module that needs it raises the error
            import_module(name)
    gc.freeze()  # the garbage collector must not touch shared objects, which would copy their pages in every fork
    gc.enable()


def run_the_shadowed_module() -> None:
    here = os.path.dirname(__file__)  # noqa: PTH120 - as above
    sys.path[:] = [entry for entry in sys.path if entry != here]
    hidden = PathFinder.find_spec("sitecustomize", sys.path)
    if hidden is not None and hidden.loader is not None:
        sys.modules["sitecustomize"] = module = module_from_spec(hidden)
        hidden.loader.exec_module(module)


leave_out_zips()
run_the_shadowed_module()
load_for_planning()
