"""Read by every Python that Spark starts on this machine, before anything else: it has them start with less work.

Spark puts its Python code on their path as a zip file. What comes out of one is compiled anew in every process: a core
is busy for most of a second where the same files, as they are installed, take a fifth of that.

Then there are those that plan reads by a Python data source. Spark asks one at each such plan, and forks one more for
each plan at the same time, always from `pyspark.daemon`: no setting names another, as there is for the workers that run
tasks (`worker_daemon.py`). Left to itself each fork loads Arrow and our modules; here the daemon does, once, before it
forks. Nothing that is loaded may start a thread: threads do not survive a fork.

This folder is first on the path, so this file hides a `sitecustomize` that the machine may have: it is run then.
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
    """If what Spark packed is there as files too: in the very folder that it calls its home."""
    home = os.environ.get("SPARK_HOME", "")
    if os.path.dirname(home) in sys.path and os.path.exists(os.path.join(home, "__init__.py")):  # noqa: PTH110,PTH118,PTH120 - no more imports than there must be
        packed = os.path.join(home, "")  # noqa: PTH118 - as above
        sys.path[:] = [entry for entry in sys.path if not entry.startswith(packed)]
        # Before each task a worker has Python look at the path anew, and all that it remembers of a zip is read again.
        for entry in [entry for entry in sys.path_importer_cache if entry.startswith(packed)]:
            del sys.path_importer_cache[entry]


def load_for_planning() -> None:
    asked_for = sys.orig_argv[-1]
    if "pyspark.daemon" not in sys.orig_argv or asked_for not in PLANNERS:
        return
    for name in (asked_for, *PLANS_WITH):
        with suppress(ImportError):  # whoever needs it says so
            import_module(name)
    gc.collect()
    gc.freeze()  # what is shared is not looked at again, which would make a copy of it in every fork


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
