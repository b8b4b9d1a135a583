"""The process from which Spark forks its Python workers, with what they need loaded already.

Left to themselves, each worker loads Arrow, pandas and our modules after the fork: most of a second of a core, for
every one of them, in the midst of the first tasks. Here it is done once for all, and they share the memory. Nothing
that is loaded may start a thread: threads do not survive a fork.
"""

from __future__ import annotations

import gc
from contextlib import suppress
from importlib import import_module
from typing import Final

from pyspark.daemon import manager

LOADED: Final = (
    "pyspark.worker",
    "pyspark.sql.pandas.serializers",
    "pandas",
    "pyarrow.compute",
    "pyarrow.parquet",
    "adbc_driver_manager.dbapi",
    "adbc_driver_postgresql",
    "tracelake.data.buffered.stage_batches",
    "tracelake.data.files.parquet_writer",
)


def main() -> None:
    for name in LOADED:
        with suppress(ImportError):  # a worker that needs it says so
            import_module(name)
    gc.collect()
    gc.freeze()  # what is shared is not looked at again, which would make a copy of it in every worker
    manager()


if __name__ == "__main__":
    main()
