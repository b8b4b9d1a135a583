"""What the cluster's jobs call. Executors do not have this module: what goes there is made inside of functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tracelake.operators.python import Call

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PARTS = 4


def held(frames: Mapping[str, DataFrame], call: Call) -> DataFrame:
    """Each number ten times as large; behind a shuffle, in parts that wait until they are let go."""
    frame = frames["numbers"]
    parts = frame.select("id").repartition(PARTS, "id")
    return parts.mapInArrow(_held_in(str(call.args["folder"])), "id long, ten long, package string")


def _held_in(folder: str) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def work(batches: Iterator[Any]) -> Iterator[Any]:
        import os
        import time
        from pathlib import Path
        from uuid import uuid4

        import pyarrow as pa
        import pyarrow.compute as pc

        import tracelake

        Path(folder, f"held.{os.getppid()}.{os.getpid()}.{uuid4().hex}").touch()  # the parent is the executor's daemon
        while not Path(folder, "go").exists():
            time.sleep(0.05)
        for batch in batches:
            ten = pc.multiply(batch.column("id"), 10)
            package = pa.repeat(str(tracelake.__file__), batch.num_rows)
            yield pa.RecordBatch.from_arrays([batch.column("id"), ten, package], names=["id", "ten", "package"])

    return work
