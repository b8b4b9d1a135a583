"""Reads the logs of a range from all inputs, which may overlap (a backfill and a compaction). Each log once.

A partition is replaced as a whole, so it is made from all inputs, whichever of them created the task. A later input in
the DAG wins: a backfill is read once, a tip is corrected after reorgs.

A partition of files has every log of its blocks, so a later input that has the block is right about it, even without a
log: a reorg may have left the block empty. A table has no partitions, and an input with a `where` of its own does not
show what it leaves out: there only the logs that both have show which block is the right one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import combinations
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tracelake.domain.access.storage_locations import is_buffered
from tracelake.domain.ranges import Range, inclusive, intersect
from tracelake.errors import InvalidRequest
from tracelake.operators.api.context import TaskContext
from tracelake.operators.api.inputs import Input, read_listed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

CHAIN, NUMBER = "chain_id", "block_number"
BLOCK: Final = (CHAIN, NUMBER)
LOG: Final = (*BLOCK, "log_index")
"""The key of a log."""
_PLACE, _HASH, _RANK = "_place", "_hash", "_rank"


@dataclass(frozen=True)
class Held:
    """An input, and the blocks of the range of which it may have logs: those of its partitions; for a table, any."""

    input: Input
    span: Range
    blocks: tuple[Range, ...]

    @property
    def is_whole(self) -> bool:
        """Whether it has every log of these blocks."""
        return not is_buffered(self.input.ref.storage_location)

    def shares(self, other: Held) -> tuple[Range, ...]:
        return intersect(self.blocks, other.blocks)

    def replaces(self, earlier: Held) -> bool:
        """Whether it has all logs of a block that `earlier` should have."""
        return self.is_whole and self.input.ref.where in (None, earlier.input.ref.where)

    @cached_property
    def chains(self) -> Sequence[int | None]:
        """Return the chain of its logs: of the range, or else of the last partition that has any.

        None without any log: it is then assumed to be of the same chain as the others.
        """
        for part in (self.span, None):
            listing = self.input.files(part)
            filled = [partition for partition in listing.partitions if partition.row_count != 0]
            if filled:
                narrowed = msgspec.structs.replace(listing, partitions=filled if part else filled[-1:])
                rows = read_listed(self.input.spark, self.input.objects, narrowed).select(CHAIN).distinct().collect()
                return [row[CHAIN] for row in rows]
        return []


def read_logs(ctx: TaskContext[Any], span: Range) -> DataFrame:
    there = [item for item in (_held(ctx, item, span) for item in ctx.inputs) if item.blocks]
    if not there:  # the input that was updated has no rows
        return _logs(ctx.trigger or ctx.inputs[0], span)
    frames = [_logs(item.input, span) for item in there]
    pairs = [(place, later) for place, later in combinations(range(len(there)), 2) if there[place].shares(there[later])]
    for place, later in pairs:
        if there[later].replaces(there[place]):
            frames[place] = frames[place].where(~_is_of(frames[place], there[later], there[place]))
    if all(there[later].replaces(there[place]) for place, later in pairs):
        return reduce(lambda whole, other: whole.unionByName(other), frames)
    return _once_each(frames)


def _held(ctx: TaskContext[Any], item: Input, span: Range) -> Held:
    if is_buffered(item.ref.storage_location):
        return Held(item, span, (span,))
    there = ctx.api.files(item.ref.dataset_uuid, span).partitions
    spans = [
        inclusive(element.start, element.end)
        for element in there
        if element.start is not None and element.end is not None
    ]
    return Held(item, span, intersect([span], spans))


def _is_of(frame: DataFrame, later: Held, earlier: Held) -> Column:
    """Whether a log is of a block that `later` has: different chains have blocks with the same numbers."""
    from pyspark.sql import functions

    number, chain = frame[NUMBER], frame[CHAIN]
    in_blocks = reduce(
        lambda group, other: group | other, [number.between(*share.edges) for share in later.shares(earlier)]
    )
    if not later.chains:
        return in_blocks
    same = [chain.eqNullSafe(functions.lit(item)) for item in later.chains]
    return in_blocks & reduce(lambda group, other: group | other, same)


def _logs(item: Input, span: Range) -> DataFrame:
    from tracelake.chain.abi.decode_logs import READ

    frame = item.dataframe(span)
    _require_logs(item, frame)
    return frame.select(*READ.names)


def _require_logs(item: Input, frame: DataFrame) -> None:
    missing = ", ".join(_not_as_in_logs(frame))
    if missing:
        raise InvalidRequest(
            f"{item.name} is no dataset of logs: it lacks {missing}",
            where="/inputs",
            hint="read one that has the columns of logs, such as the output `logs` of cryo_ingest",
        )


def _not_as_in_logs(frame: DataFrame) -> Iterator[str]:
    """Return what is missing, by name and type: bytes written as text are not bytes, and would match nothing."""
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import BinaryType, NumericType

    from tracelake.chain.abi.decode_logs import READ

    for wanted in from_arrow_schema(READ):
        kind = BinaryType if isinstance(wanted.dataType, BinaryType) else NumericType
        if not any(has.name == wanted.name and isinstance(has.dataType, kind) for has in frame.schema):
            yield f"{wanted.name} ({wanted.dataType.simpleString()})"


def _once_each(frames: Sequence[DataFrame]) -> DataFrame:
    """Where inputs disagree about a block, by its hash, the last input with logs of it wins."""
    from pyspark.sql import Window, functions

    placed = [frame.withColumn(_PLACE, functions.lit(place)) for place, frame in enumerate(frames)]
    whole = reduce(lambda group, other: group.unionByName(other), placed)
    last = functions.max_by("block_hash", _PLACE).over(Window.partitionBy(*BLOCK))
    whole = whole.withColumn(_HASH, last)
    whole = whole.where(whole["block_hash"].eqNullSafe(whole[_HASH]))
    same = Window.partitionBy(*LOG).orderBy(functions.desc(_PLACE))
    whole = whole.withColumn(_RANK, functions.row_number().over(same))
    return whole.where(whole[_RANK] == 1).drop(_PLACE, _HASH, _RANK)
