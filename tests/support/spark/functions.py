"""Functions that jobs of these tests name."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelake.errors import SnapshotTooOld
from tracelake.operators.python import Call

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def numbers(frames: Mapping[str, DataFrame], call: Call) -> DataFrame:
    """As many as the job says, made in Python workers."""
    assert not frames or set(frames) == {"go"}
    wanted = call.spark.range(int(call.args["rows"]))
    return wanted.mapInArrow(lambda batches: batches, "id long")


def doubled(frames: Mapping[str, DataFrame], call: Call) -> DataFrame:
    frame = frames["numbers"]
    return frame.select("block_number", (frame.value * call.args["times"]).alias("more"))


def halves(frames: Mapping[str, DataFrame], call: Call) -> dict[str, DataFrame]:
    start, end = call.range or (0, 0)
    middle = (start + end) // 2
    frame = frames["numbers"]
    return {"low": frame.where(frame.block_number <= middle), "high": frame.where(frame.block_number > middle)}


def in_order(frames: Mapping[str, DataFrame], call: Call) -> list[DataFrame]:
    assert call.outputs == ("low", "high")
    return list(halves(frames, call).values())


def nothing(frames: Mapping[str, DataFrame], call: Call) -> Any:
    del frames, call


def broken(frames: Mapping[str, DataFrame], call: Call) -> Any:
    raise RuntimeError(f"cannot do {sorted(frames)} with {dict(call.args)}")


def too_late(frames: Mapping[str, DataFrame], call: Call) -> Any:
    del frames, call
    raise SnapshotTooOld("what commit 1 needs was swept since", where="commit 1")


def alerts(frames: Mapping[str, DataFrame], call: Call) -> DataFrame:
    """For a buffered dataset: a row for each number, marked by the job's argument."""
    return frames["n"].selectExpr(
        f"concat('{call.args['prefix']}', block_number) AS dedupe_key",
        "'python' AS severity",
        "value AS block_number",
        "CAST(value AS STRING) AS amount",
        """concat('{"n": ', block_number, '}') AS payload""",
    )


def alerts_twice(frames: Mapping[str, DataFrame], call: Call) -> list[DataFrame]:
    """The same for a buffered dataset and for files."""
    return [alerts(frames, call)] * 2


def both(frames: Mapping[str, DataFrame], call: Call) -> DataFrame:
    del call
    return frames["wide"].unionByName(frames["narrow"])


def copied(frames: Mapping[str, DataFrame], call: Call) -> DataFrame:
    del call
    return frames["wide"]


def marks(frames: Mapping[str, DataFrame], call: Call) -> DataFrame:
    """For a buffered dataset, in two batches."""
    del call
    return frames["numbers"].selectExpr("concat('p', block_number) AS id", "block_number AS number").repartition(2)


def proves_secrets(frames: Mapping[str, DataFrame], call: Call) -> DataFrame:
    """A row with the secrets that it got: their names, and a proof of each value."""
    del frames
    message = f"{call.secrets} {call!r}"
    proofs = ",".join(f"{name}:{proof(value)}" for name, value in call.secrets.items())
    leaked = any(value in message for value in call.secrets.values())
    return call.spark.createDataFrame([(proofs, leaked)], "proofs string, leaked boolean")


def leaks_secrets(frames: Mapping[str, DataFrame], call: Call) -> DataFrame:
    """Prints the secrets in every possible way, and fails."""
    del frames
    for number, value in enumerate(call.secrets.values()):
        call.progress(number, None, f"logs in with {value}")
    awaited = call.args.get("seen")  # a file that the test creates when it has seen the progress in the database
    while awaited is not None and not Path(awaited).exists():
        time.sleep(0.02)
    raise RuntimeError(f"cannot log in with {dict(call.secrets)}")


def fails_on_spark(frames: Mapping[str, DataFrame], call: Call) -> DataFrame:
    """Spark repeats a long text, with the secret where it would be cut."""
    del frames
    text = "p" * call.args["before"] + "".join(call.secrets.values())
    return call.spark.sql(f"SELECT raise_error('{text}') AS x")


def proof(secret: str) -> str:
    return sha256(secret.encode()).hexdigest()[:16]


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


def noted(frames: Mapping[str, DataFrame], call: Call) -> DataFrame:
    """One row about what fired the source."""
    assert not frames
    assert call.fired is not None
    slot = call.fired.slot.isoformat() if call.fired.slot else ""
    row = (call.fired.kind, slot, json.dumps(call.fired.body))
    return call.spark.createDataFrame([row], "kind string, slot string, body string")
