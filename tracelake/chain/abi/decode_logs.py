"""`decode_logs`: a table of logs and an event -> the event's rows. Single words are decoded for all rows at once.

A log belongs to the event if its first topic and its number of topics match. Logs whose data does not match are left
out and counted: any contract may emit them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracelake.chain.abi.events import BASE_COLUMNS, READ_COLUMNS, AbiEvent, Argument
from tracelake.chain.abi.types import AbiType
from tracelake.chain.abi.values import WORD, LogData, Undecodable, plain
from tracelake.chain.abi.words import Mask, Words, columns_of, fields_of, well_formed
from tracelake.chain.schemas import LOGS

READ = pa.schema([LOGS.field(name) for name in READ_COLUMNS])


@dataclass(frozen=True, slots=True)
class Decoded:
    table: pa.Table
    undecodable: int
    """Logs of this event whose data does not match it."""


def decode_logs(logs: pa.Table, event: AbiEvent) -> Decoded:
    """Columns: `BASE_COLUMNS`, then the event's. Rows in the order of the logs."""
    mine = _of_event(logs, event)
    good = _good_rows(mine, event)
    kept = mine.filter(pa.array(good))
    columns, fine = _columns(kept, event)
    table = pa.table({name: kept[name] for name in BASE_COLUMNS} | columns, schema=schema_of(event))
    if not fine.all():
        table = table.filter(pa.array(fine))
    return Decoded(table, mine.num_rows - table.num_rows)


def schema_of(event: AbiEvent) -> pa.Schema:
    """Of the decoded table."""
    fields = [LOGS.field(name) for name in BASE_COLUMNS]
    for argument in event.arguments:
        fields += _fields(argument)
    return pa.schema(fields)


def _fields(argument: Argument) -> list[pa.Field]:
    if argument.type.elementary:
        return fields_of(argument.type, argument.column)
    if argument.indexed:
        return [pa.field(f"{argument.column}_hash", pa.binary())]
    return [pa.field(argument.column, pa.binary() if argument.type.kind == "bytes" else pa.string())]


def _of_event(logs: pa.Table, event: AbiEvent) -> pa.Table:
    chosen = pc.equal(logs["topic0"], pa.scalar(event.topic0, logs.schema.field("topic0").type))
    for place in range(1, 4):
        there = pc.is_valid(logs[f"topic{place}"])
        chosen = pc.and_(chosen, there if place < event.topics else pc.invert(there))
    return logs.filter(chosen).combine_chunks()


def _placed(event: AbiEvent) -> Iterator[tuple[Argument, str, int]]:
    """Each argument with its position: a topic's column, or `data` and the word of its head."""
    topic, word = 1, 0
    for argument in event.arguments:
        if argument.indexed:
            yield argument, f"topic{topic}", 0
            topic += 1
        else:
            yield argument, "data", word
            word += argument.type.words


def _good_rows(logs: pa.Table, event: AbiEvent) -> Mask:
    """Rows whose head is long enough, and whose words are well formed."""
    head = WORD * sum(argument.type.words for argument in event.arguments if not argument.indexed)
    good: Mask = np.asarray(_sizes(logs["data"]) >= head)
    for argument, column, word in _placed(event):
        if argument.indexed:
            good &= _sizes(logs[column]) == WORD
        if argument.type.elementary and good.any():
            rows = np.flatnonzero(good)
            good[rows] = well_formed(argument.type, _words(logs[column].take(pa.array(rows)), word))
    return good


def _columns(logs: pa.Table, event: AbiEvent) -> tuple[dict[str, pa.Array], Mask]:
    """The event's columns, and which rows could be read; the others hold nulls."""
    columns: dict[str, pa.Array] = {}
    fine: Mask = np.ones(logs.num_rows, dtype=bool)
    unpacked: list[LogData] | None = None
    for argument, column, word in _placed(event):
        if argument.type.elementary:
            columns |= columns_of(argument.type, argument.column, _words(logs[column], word))
        elif argument.indexed:
            columns[f"{argument.column}_hash"] = _whole(logs[column])
        else:
            unpacked = unpacked or [LogData(data.as_py()) for data in logs[column]]
            values = [_value(argument.type, data, word * WORD) for data in unpacked]
            fine &= np.array([value is not None for value in values], dtype=bool)
            columns[argument.column] = pa.array(values, _fields(argument)[0].type)
    return columns, fine


def _value(kind: AbiType, data: LogData, head: int) -> Any:
    try:
        value = data.value(kind, head)
    except (Undecodable, RecursionError):
        return None
    return value if kind.kind in {"bytes", "string"} else json.dumps(plain(value), separators=(",", ":"))


def _words(column: pa.ChunkedArray, word: int) -> Words:
    """One word of each row, as a matrix."""
    array = _whole(column)
    starts = _offsets(array)[:-1].astype(np.int64) + WORD * word
    content = np.frombuffer(array.buffers()[2] or b"", dtype=np.uint8)
    return content[starts[:, None] + np.arange(WORD)] if len(starts) else np.zeros((0, WORD), dtype=np.uint8)


def _sizes(column: pa.ChunkedArray) -> np.ndarray[Any, Any]:
    return np.diff(_offsets(_whole(column)))


def _whole(column: pa.ChunkedArray) -> pa.Array:
    """One array with 32-bit offsets, wherever the logs came from."""
    array = column.combine_chunks()
    array = pa.concat_arrays(array.chunks) if isinstance(array, pa.ChunkedArray) else array
    return array.cast(pa.binary())


def _offsets(array: pa.Array) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.frombuffer(array.buffers()[1], dtype=np.int32)[array.offset : array.offset + len(array) + 1]
