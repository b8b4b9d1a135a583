"""Reads a batch of rows strictly: every row matches the declaration, or the batch is refused with line and reason.

JSON lines are decoded together, typed; only when that fails is each line decoded alone, to find the wrong one. Parquet
and Arrow must have the declared columns in types that convert without loss. Runs in Python workers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tracelake.data.buffered.batch_fault import BatchFault
from tracelake.data.buffered.types import decimal_text, digits, form_of, to_arrow
from tracelake.data.buffered.unpack_batch import unpack_arrow, unpack_parquet
from tracelake.domain.buffered import Column, Declaration
from tracelake.domain.text.suggest import closest

JSON_LINES: Final = frozenset({"application/jsonl", "application/x-ndjson", "application/x-jsonlines"})
PARQUET: Final = frozenset({"application/vnd.apache.parquet", "application/x-parquet"})
ARROW: Final = frozenset({"application/vnd.apache.arrow.stream", "application/vnd.apache.arrow.file"})
CONTENT_TYPES: Final = JSON_LINES | PARQUET | ARROW
NUL: Final = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
"""A NUL character in JSON, which Postgres cannot store in text."""


def _is_text(given: pa.DataType) -> bool:
    return bool(pa.types.is_string(given) or pa.types.is_large_string(given) or pa.types.is_string_view(given))


def _is_bytes(given: pa.DataType) -> bool:
    t = pa.types
    return bool(t.is_binary(given) or t.is_large_binary(given) or t.is_fixed_size_binary(given))


FITTING: Final = {
    "boolean": (pa.types.is_boolean,),
    "integer": (pa.types.is_integer,),
    "bigint": (pa.types.is_integer,),
    "double": (pa.types.is_floating,),
    "text": (_is_text,),
    "json": (_is_text,),
    "bytes": (_is_bytes,),
    "date": (pa.types.is_date,),
    "timestamp": (lambda given: pa.types.is_timestamp(given) and given.tz is not None,),
    "uint256": (_is_text, pa.types.is_integer, lambda given: pa.types.is_decimal(given) and given.scale == 0),
    "decimal": (pa.types.is_decimal, pa.types.is_integer),
}
"""The Arrow types that are accepted for a column of each type."""


@dataclass(frozen=True)
class CheckLimits:
    line_bytes: int
    unpacked_bytes: int
    """The limit of unpacked Parquet and Arrow, whatever their packed size."""


def check_batch(body: bytes, content_type: str, declaration: Declaration, limits: CheckLimits) -> pa.Table:
    """Return the rows in transfer types (`buffered/types.py`), with every declared column in order, each key once."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind not in CONTENT_TYPES:
        near = closest(kind, sorted(CONTENT_TYPES)) or f"one of {', '.join(sorted(CONTENT_TYPES))}"
        raise BatchFault(f"content type {kind[:80]!r} is not taken; {near}")
    if kind in JSON_LINES:
        table, lines = _from_lines(body, declaration, limits)
    else:
        table = _from_columns(_open(body, kind, declaration, limits), declaration)
        lines = range(1, table.num_rows + 1)
    return _each_key_once(table, declaration, lines)


def _from_lines(body: bytes, declaration: Declaration, limits: CheckLimits) -> tuple[pa.Table, Sequence[int]]:
    """Return the table, and the line number of each row: empty lines are counted and skipped."""
    decoder = msgspec.json.Decoder(row_type(declaration))
    lines = body.split(b"\n")
    _refuse_long_lines(lines, limits)
    try:
        rows = decoder.decode_lines(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _first_fault(body, declaration, error) from None
    filled = _filled(lines, len(rows))
    if len(rows) != len(filled) or _holds_nul(body):
        raise _first_fault(body, declaration, None)
    return _columns(rows, declaration, filled), filled


def _filled(lines: Sequence[bytes], rows: int) -> Sequence[int]:
    """Return the numbers of the lines that are not empty; nearly always all but the end of the last line."""
    filled = list(map(bool, map(bytes.strip, lines)))
    if all(filled[:-1]) and filled.count(True) == rows:
        return range(1, rows + 1)
    return [number for number, is_filled in enumerate(filled, start=1) if is_filled]


def row_type(declaration: Declaration) -> type[msgspec.Struct]:
    """Build the type of a row: unknown fields are refused, required fields must be present."""
    fields: list[Any] = []
    for number, column in enumerate(declaration.columns):
        kind = form_of(column.type).json
        if not column.nullable:
            fields.append((f"c{number}", kind))
        elif kind is msgspec.Raw:  # a single value; `null` is checked afterwards
            fields.append((f"c{number}", kind, msgspec.Raw(b"null")))
        else:
            fields.append((f"c{number}", kind | None, None))
    rename = {f"c{number}": column.name for number, column in enumerate(declaration.columns)}
    # Fields without a default come first, as a Struct requires.
    fields.sort(key=len)
    return msgspec.defstruct("Row", fields, forbid_unknown_fields=True, rename=rename, gc=False)


def _columns(rows: Sequence[Any], declaration: Declaration, lines: Sequence[int]) -> pa.Table:
    arrays = []
    for number, column in enumerate(declaration.columns):
        values = list(map(attrgetter(f"c{number}"), rows))
        try:
            array = to_arrow(column.type, values)
        except (ValueError, OverflowError, pa.ArrowInvalid, UnicodeError):
            raise _first_misfit(column, values, lines) from None
        if not column.nullable and array.null_count:
            raise _empty(column, lines[_first_null(array)])
        arrays.append(array)
    return pa.table(arrays, names=list(declaration.names))


def _first_misfit(column: Column, values: Sequence[Any], lines: Sequence[int]) -> BatchFault:
    for line, value in zip(lines, values, strict=True):
        try:
            to_arrow(column.type, [value])
        except (ValueError, OverflowError, pa.ArrowInvalid, UnicodeError) as error:
            return BatchFault(f"column {column.name!r}: {str(error).splitlines()[0]}", line)
    return BatchFault(f"column {column.name!r} cannot be stored")


def _holds_nul(text: bytes) -> bool:
    """Check all lines at once: one by one takes a second for a full batch."""
    return b"\\u0000" in text and NUL.search(text) is not None


def _refuse_long_lines(lines: Sequence[bytes], limits: CheckLimits) -> None:
    if max(map(len, lines)) <= limits.line_bytes:
        return
    for number, line in enumerate(lines, start=1):
        if len(line) > limits.line_bytes:
            raise BatchFault(f"the line has {len(line)} bytes; at most {limits.line_bytes} are allowed", number)


def _first_fault(body: bytes, declaration: Declaration, error: Exception | None) -> BatchFault:
    """Decode line by line to find the wrong one."""
    decoder = msgspec.json.Decoder(row_type(declaration))
    for number, line in enumerate(body.split(b"\n"), start=1):
        if not line.strip():
            continue
        if _holds_nul(line):
            return BatchFault("the line holds a NUL character, which cannot be stored", number)
        try:
            decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as line_error:
            return BatchFault(_message(line_error, declaration), number)
    return BatchFault(f"the batch is not one JSON object a line{f': {error}' if error else ''}")


def _message(error: Exception, declaration: Declaration) -> str:
    """Return msgspec's message with the column's name, and a suggestion for an unknown field."""
    message, _, path = str(error).partition(" - at `$")
    name = path.rstrip("`").lstrip(".").partition(".")[0]
    if unknown := re.search(r"unknown field `(.*)`", message):
        near = closest(unknown[1], declaration.names)
        return f"there is no column {unknown[1][:128]!r}{f'; {near}' if near else ''}"
    if missing := re.search(r"missing required field `(.*)`", message):
        return f"column {missing[1]!r} is missing, and may not be empty"
    return f"column {name!r}: {message}" if name else f"not a JSON object of this dataset: {message}"


def _open(body: bytes, kind: str, declaration: Declaration, limits: CheckLimits) -> pa.Table:
    def check(schema: pa.Schema) -> pa.Table:
        return _from_columns(schema.empty_table(), declaration)

    try:
        if kind in PARQUET:
            return unpack_parquet(body, limits.unpacked_bytes, check)
        return unpack_arrow(body, kind, limits.unpacked_bytes, check)
    except MemoryError:  # Arrow's is one of its own exceptions too
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise BatchFault(
            f"the batch cannot be read as {kind}: {(str(error) or type(error).__name__).splitlines()[0]}"
        ) from None


def _from_columns(table: pa.Table, declaration: Declaration) -> pa.Table:
    for name in table.column_names:
        if name not in declaration.names:
            near = closest(name, declaration.names)
            raise BatchFault(f"there is no column {name[:128]!r}{f'; {near}' if near else ''}")
    if len(set(table.column_names)) != len(table.column_names):
        raise BatchFault("the batch has two columns of one name")
    arrays = [_column_of(table, column) for column in declaration.columns]
    return pa.table(arrays, names=list(declaration.names))


def _column_of(table: pa.Table, column: Column) -> pa.ChunkedArray:
    form = form_of(column.type)
    if column.name not in table.column_names:
        if not column.nullable:
            raise BatchFault(f"column {column.name!r} is missing, and may not be empty")
        return pa.chunked_array([pa.nulls(table.num_rows, form.arrow)])
    given = table.column(column.name)
    if pa.types.is_dictionary(given.type):
        given = given.cast(given.type.value_type)
    if not column.nullable and given.null_count:
        raise _empty(column, _first_null(given) + 1)
    if not _fits(column.type, given.type):
        raise BatchFault(f"column {column.name!r} is {given.type} in the batch, and {column.type} in the dataset")
    return _checked(column, given)


def _fits(kind: str, given: pa.DataType) -> bool:
    """Whether the conversion guesses nothing: no numbers from text, and no zone for a time without one."""
    if pa.types.is_null(given):
        return True
    family = "decimal" if kind.startswith("decimal") else kind
    return any(bool(check(given)) for check in FITTING[family])


def _checked(column: Column, given: pa.ChunkedArray) -> pa.ChunkedArray:
    kind, form = column.type, form_of(column.type)
    if kind in {"json", "uint256"} or kind.startswith("decimal"):
        return _text_column(column, given)
    try:
        converted = given.cast(form.arrow)
    except pa.ArrowInvalid as error:
        raise BatchFault(f"column {column.name!r}: {str(error).splitlines()[0]}") from None
    if kind == "text" and (place := _first_true(pc.match_substring(converted, "\0"))) is not None:
        raise BatchFault(f"column {column.name!r} holds a NUL character, which cannot be stored", place + 1)
    return converted


def _text_column(column: Column, given: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert chunk by chunk: all values together would be many times as large as Python objects."""
    line, chunks = 1, []
    for chunk in given.chunks:
        chunks.append(_text_chunk(column, chunk, line))
        line += len(chunk)
    return pa.chunked_array(chunks, pa.string())


def _text_chunk(column: Column, given: pa.Array, first: int) -> pa.Array:
    values = []
    for line, value in enumerate(given.to_pylist(), start=first):
        try:
            values.append(None if value is None else _as_text(column.type, value))
        except (ValueError, msgspec.DecodeError, ArithmeticError) as error:
            raise BatchFault(f"column {column.name!r}: {error}", line) from None
    return pa.array(values, pa.string())


def _as_text(kind: str, value: Any) -> str:
    from decimal import Decimal

    if kind == "json":
        if _holds_nul(value.encode()):
            raise ValueError("a NUL character cannot be stored")
        msgspec.json.decode(value)
        return str(value)
    if kind == "uint256":
        if isinstance(value, str) and not re.fullmatch(r"0|[1-9][0-9]{0,77}", value):
            raise ValueError(f"{value[:100]!r} is not a uint256")
        return digits(value if isinstance(value, str) else int(value))
    precision, scale = (int(part) for part in kind[8:-1].split(","))
    return decimal_text(Decimal(value), precision, scale)


def _each_key_once(table: pa.Table, declaration: Declaration, lines: Sequence[int]) -> pa.Table:
    """Drop repeated rows; two different rows with one key contradict each other, and the batch is refused."""
    if table.group_by(list(declaration.unique_key)).aggregate([]).num_rows == table.num_rows:
        return table
    keys = list(zip(*(table.column(name).to_pylist() for name in declaration.unique_key), strict=True))
    first: dict[tuple[Any, ...], int] = {}
    places = [place for place, key in enumerate(keys) if first.setdefault(key, place) == place]
    for place, other in _repeated(keys, first):
        if table.slice(place, 1).to_pylist() != table.slice(other, 1).to_pylist():
            what = ", ".join(declaration.unique_key)
            raise BatchFault(f"another row of the same key ({what}) is in line {lines[other]}", lines[place])
    return table.take(pa.array(places))


def _repeated(keys: Sequence[tuple[Any, ...]], first: dict[tuple[Any, ...], int]) -> Iterator[tuple[int, int]]:
    return ((place, first[key]) for place, key in enumerate(keys) if first[key] != place)


def _empty(column: Column, line: int) -> BatchFault:
    return BatchFault(f"column {column.name!r} is empty, which is not allowed", line)


def _first_null(array: pa.Array | pa.ChunkedArray) -> int:
    return _first_true(array.is_null()) or 0


def _first_true(array: pa.Array | pa.ChunkedArray) -> int | None:
    index = pc.index(array, True).as_py()
    return None if index < 0 else int(index)
