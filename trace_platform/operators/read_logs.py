"""The logs of a range, of every input that has some of it: a backfill and a compaction may share it. Each log once.

A partition is replaced whole, so it is made from all inputs, whichever of them made the task.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from trace_platform.domain.places import is_buffered
from trace_platform.domain.ranges import Range, inclusive, overlapping
from trace_platform.errors import InvalidRequest
from trace_platform.operators.context import TaskContext
from trace_platform.operators.inputs import Input

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BLOCK: Final = ("chain_id", "block_number")
LOG: Final = (*BLOCK, "log_index")
"""What a log is known by."""
_PLACE, _HASH, _RANK = "_place", "_hash", "_rank"


def read_logs(ctx: TaskContext[Any], span: Range) -> DataFrame:
    held = [(one, _held(ctx, one, span)) for one in ctx.inputs]
    # Nobody has any of it: then the input whose news it is says so, with no rows.
    read = [one for one, spans in held if spans] or [ctx.trigger or ctx.inputs[0]]
    frames = [_logs(one, span) for one in read]
    if overlapping([each for _, spans in held for each in spans]):
        return _once_each(frames)
    return reduce(lambda whole, other: whole.unionByName(other), frames)


def _held(ctx: TaskContext[Any], one: Input, span: Range) -> Sequence[Range]:
    """Which blocks it may have logs of, as its partitions say; a table may have some of any."""
    if is_buffered(one.ref.storage_location):
        return [span]
    there = ctx.door.files(one.ref.dataset_uuid, span).partitions
    return [inclusive(each.start, each.end) for each in there if each.start is not None and each.end is not None]


def _logs(one: Input, span: Range) -> DataFrame:
    from trace_platform.chain.decode_logs import READ

    frame = one.dataframe(span)
    _require_logs(one, frame)
    return frame.select(*READ.names)


def _require_logs(one: Input, frame: DataFrame) -> None:
    missing = ", ".join(_not_as_in_logs(frame))
    if missing:
        raise InvalidRequest(
            f"{one.name} is no dataset of logs: it lacks {missing}",
            where="/inputs",
            hint="read one that has the columns of logs, such as the output `logs` of cryo_ingest",
        )


def _not_as_in_logs(frame: DataFrame) -> Iterator[str]:
    """What is missing, by name and kind: a text that shows bytes is no bytes, and would match nothing."""
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import BinaryType, NumericType

    from trace_platform.chain.decode_logs import READ

    for wanted in from_arrow_schema(READ):
        kind = BinaryType if isinstance(wanted.dataType, BinaryType) else NumericType
        if not any(has.name == wanted.name and isinstance(has.dataType, kind) for has in frame.schema):
            yield f"{wanted.name} ({wanted.dataType.simpleString()})"


def _once_each(frames: Sequence[DataFrame]) -> DataFrame:
    """Where inputs disagree about a block, which its hash shows, the last that has logs of it counts.

    The later an input stands in the DAG, the more it counts: a backfill is read once, a tip is corrected after reorgs.
    """
    from pyspark.sql import Window, functions

    placed = [frame.withColumn(_PLACE, functions.lit(place)) for place, frame in enumerate(frames)]
    whole = reduce(lambda some, other: some.unionByName(other), placed)
    last = functions.max_by("block_hash", _PLACE).over(Window.partitionBy(*BLOCK))
    whole = whole.withColumn(_HASH, last)
    whole = whole.where(whole["block_hash"].eqNullSafe(whole[_HASH]))
    same = Window.partitionBy(*LOG).orderBy(functions.desc(_PLACE))
    whole = whole.withColumn(_RANK, functions.row_number().over(same))
    return whole.where(whole[_RANK] == 1).drop(_PLACE, _HASH, _RANK)
