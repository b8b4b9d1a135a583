"""Reads CSV and JSON files as Arrow tables with a given schema; a line that does not fit is reported by its number.

Runs inside Spark's Python workers, one file at a time, in memory.
"""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict

import msgspec

from tracelake.data.files.broken_files import AS_UTF_8, readable
from tracelake.data.files.foreign_parquet import infer_parquet, read_parquet
from tracelake.data.files.shape import Misfits, Shape
from tracelake.data.files.text_values import REFUSALS, from_json, from_text, guess_json, guess_text, in_json
from tracelake.errors import WorkFailed

if TYPE_CHECKING:
    import pyarrow as pa

INFERRED_FROM: Final = 1_000
BROKEN_JSON: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def read_table(path: Path, name: str, shape: Shape) -> tuple[pa.Table, int]:
    """Return the rows of a file with exactly these columns, and how many lines were left out."""
    if shape.format == "parquet":
        return read_parquet(path, name, shape)
    bad = Misfits(name, shape.bad_lines)
    with readable(path, name):
        rows = dict(_lines(path, shape, bad))
    return _table(rows, shape, bad), len(bad.lines)


def infer_columns(path: Path, name: str, shape: Shape) -> dict[str, str]:
    """Infer names and types from the first lines of a file."""
    if shape.format == "parquet":
        return infer_parquet(path, name)
    bad = Misfits(name, shape.bad_lines)
    samples: dict[str, list[Any]] = {}
    with readable(path, name):
        for count, (_, row) in enumerate(_lines(path, shape, bad)):
            if count >= INFERRED_FROM:
                break
            for column, value in row.items():
                samples.setdefault(column, []).append(value)
    if not samples:
        raise WorkFailed(f"{name} has no rows to infer columns from", where="/config", hint="give `columns`")
    guess = guess_text if shape.format == "csv" else guess_json
    return {column: guess([value for value in values if value is not None]) for column, values in samples.items()}


def _lines(path: Path, shape: Shape, bad: Misfits) -> Iterator[tuple[int, dict[str, Any]]]:
    return _csv_lines(path, shape, bad) if shape.format == "csv" else _json_lines(path, shape, bad)


def _csv_lines(path: Path, shape: Shape, bad: Misfits) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file, delimiter=shape.delimiter, strict=True)
        names = list(shape.columns)
        begins = 1
        if shape.header:
            names = _header(reader, shape, bad.file)
            begins = reader.line_num + 1
        while True:
            try:
                row = next(reader, None)
            except csv.Error as error:
                bad.note(begins, str(error))
                row = []
            if row is None:
                return
            if not names:
                names = [f"c{number}" for number in range(len(row))]
            if len(row) == len(names):
                yield begins, {name: value or None for name, value in zip(names, row, strict=True)}
            elif row:
                bad.note(begins, f"{len(row)} values, not {len(names)}")
            begins = reader.line_num + 1


def _header(reader: Iterator[list[str]], shape: Shape, file: str) -> list[str]:
    try:
        names = next(reader, None)
    except csv.Error as error:
        raise WorkFailed(f"{file}: line 1: {error}", where="/config/path", hint="correct the file") from None
    if names is None:
        raise WorkFailed(
            f"{file} is empty: there is no line of column names",
            where="/config/path",
            hint="write the file again, or leave it out by `pattern`",
        )
    if any("\0" in name for name in names):
        raise WorkFailed(f"{file}: line 1: there are NUL bytes", where="/config/path", hint=AS_UTF_8)
    shape.refuse_lacking(names, f"{file}: line 1")
    if len(set(names)) != len(names):
        raise WorkFailed(f"{file}: line 1: two columns have one name", where="/config/columns")
    return names


def _json_lines(path: Path, shape: Shape, bad: Misfits) -> Iterator[tuple[int, dict[str, Any]]]:
    body = path.read_bytes().removeprefix(codecs.BOM_UTF8)
    if body.lstrip()[:1] == b"[":
        decode = _decoder(lambda row: list[row], shape, body)  # type: ignore[valid-type]
        try:
            yield from enumerate(decode(body), start=1)
        except (msgspec.DecodeError, RecursionError) as error:
            raise WorkFailed(
                f"{bad.file} is not a list of JSON objects: {error}", where="/config/path", hint="correct the file"
            ) from None
        return
    decode = _decoder(lambda row: row, shape, body)
    for number, line in enumerate(io.BytesIO(body), start=1):
        if line.strip():
            try:
                yield number, decode(line)
            except BROKEN_JSON as error:
                bad.note(number, str(error))


def _decoder(of: Callable[[Any], Any], shape: Shape, body: bytes) -> Callable[[bytes], Any]:
    """Decode the lines. Numbers keep their text; doubles are decoded at once, and lines with others again.

    Unknown fields are skipped without a check of their encoding: so all bytes are checked for UTF-8 first.
    """
    whole = msgspec.json.Decoder(of(dict[str, Any]), float_hook=msgspec.Raw).decode
    if not shape.columns or not _is_utf8(body):
        return whole
    wanted = {name: float | None if kind == "double" else Any for name, kind in shape.columns.items()}
    row: Any = TypedDict("Row", wanted, total=False)  # type: ignore[misc]
    quick = msgspec.json.Decoder(of(row), float_hook=msgspec.Raw).decode

    def decode(text: bytes) -> Any:
        try:
            return quick(text)
        except msgspec.ValidationError:
            return whole(text)

    return decode


def _is_utf8(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def _table(rows: Mapping[int, Mapping[str, Any]], shape: Shape, bad: Misfits) -> pa.Table:
    """Convert column by column; only a column that does not fit is examined by value."""
    import pyarrow as pa

    convert = from_text if shape.format == "csv" else from_json
    lines, arrays = list(rows), dict[str, Any]()
    for name, kind in shape.columns.items():
        values = [row.get(name) for row in rows.values()]
        try:
            arrays[name] = convert(values, kind)
        except REFUSALS:
            _Misfitting(name, kind, convert, bad).note(lines, values)
    if len(arrays) < len(shape.columns):
        kept = [row for line, row in rows.items() if line not in bad.lines]
        arrays = {name: convert([row.get(name) for row in kept], kind) for name, kind in shape.columns.items()}
    return pa.table(list(arrays.values()), names=list(arrays))


class _Misfitting:
    """Bisect the values that do not fit until the lines are found."""

    def __init__(self, name: str, kind: str, convert: Callable[[Sequence[Any], str], Any], bad: Misfits) -> None:
        self.name, self.kind, self.convert, self.bad = name, kind, convert, bad

    def note(self, lines: Sequence[int], values: Sequence[Any]) -> None:
        try:
            self.convert(values, self.kind)
        except REFUSALS:
            if len(values) == 1:
                text = str(in_json(values[0]))[:80]
                self.bad.note(lines[0], f"{self.name} is {text!r}, which is no {self.kind}")
                return
            half = len(values) // 2
            self.note(lines[:half], values[:half])
            self.note(lines[half:], values[half:])
