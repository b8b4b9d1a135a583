"""The process from which Spark forks its Python workers, with their modules loaded.

By default each worker loads Arrow, pandas and our modules after the fork: most of a second of a core for each, during
the first tasks. Here they are loaded once, and the workers share the memory. Nothing that is loaded may start a thread:
threads do not survive a fork.
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
    gc.disable()  # what is imported stays: to look for garbage in it, again and again, takes a fifth of the start
    for name in LOADED:
        with suppress(ImportError):  # a worker that needs it raises the error
            import_module(name)
    gc.freeze()  # the garbage collector must not touch shared objects, which would copy their pages in every worker
    gc.enable()
    manager()


if __name__ == "__main__":
    main()
