"""Files as Arrow tables, with a schema that is given; a line of CSV or JSON that does not fit is told by its number.

Runs inside Spark's Python workers, one file at a time, in memory.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from trace_platform.errors import WorkFailed
from trace_platform.spark.file_shape import Misfits, Shape, arrow_type
from trace_platform.spark.parquet_files import infer_parquet, read_parquet

if TYPE_CHECKING:
    import pyarrow as pa

ZONED: Final = re.compile(r".*(Z|[+-]\d\d:?\d\d)")
INFERRED_FROM: Final = 1_000


def read_table(path: Path, name: str, shape: Shape) -> tuple[pa.Table, int]:
    """The rows of a file with exactly these columns, and how many lines were left out."""
    if shape.format == "parquet":
        return read_parquet(path, name, shape)
    bad = Misfits(name, shape.bad_lines)
    try:
        rows = dict(_lines(path, shape, bad))
    except (OSError, UnicodeDecodeError) as wrong:
        raise WorkFailed(f"{name} cannot be read: {wrong}", where="/config/path") from None
    return _table(rows, shape, bad), len(bad.lines)


def infer_columns(path: Path, name: str, shape: Shape) -> dict[str, str]:
    """Names and types as the first lines of a file suggest."""
    if shape.format == "parquet":
        return infer_parquet(path, name)
    bad = Misfits(name, shape.bad_lines)
    found: dict[str, list[Any]] = {}
    for count, (_, row) in enumerate(_lines(path, shape, bad)):
        if count >= INFERRED_FROM:
            break
        for column, value in row.items():
            found.setdefault(column, []).append(value)
    if not found:
        raise WorkFailed(f"{name} has no rows to guess columns from", where="/config", hint="give `columns`")
    guess = _guess_text if shape.format == "csv" else _guess_json
    return {column: guess([value for value in values if value is not None]) for column, values in found.items()}


def _lines(path: Path, shape: Shape, bad: Misfits) -> Iterator[tuple[int, dict[str, Any]]]:
    return _csv_lines(path, shape, bad) if shape.format == "csv" else _json_lines(path, bad)


def _csv_lines(path: Path, shape: Shape, bad: Misfits) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file, delimiter=shape.delimiter, strict=True)
        names = list(shape.columns)
        begins = 1
        if shape.header:
            names = next(reader, [])
            _refuse_header(names, shape, bad.file)
            begins = reader.line_num + 1
        while True:
            try:
                row = next(reader, None)
            except csv.Error as wrong:
                bad.note(begins, str(wrong))
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


def _refuse_header(names: Sequence[str], shape: Shape, file: str) -> None:
    shape.refuse_lacking(names, f"{file}: line 1")
    if len(set(names)) != len(names):
        raise WorkFailed(f"{file}: line 1: two columns have one name", where="/config/columns")


def _json_lines(path: Path, bad: Misfits) -> Iterator[tuple[int, dict[str, Any]]]:
    body = path.read_bytes()
    if body.lstrip()[:1] == b"[":
        try:
            yield from enumerate(msgspec.json.decode(body, type=list[dict[str, Any]]), start=1)
        except msgspec.DecodeError as wrong:
            raise WorkFailed(f"{bad.file} is not a list of JSON objects: {wrong}", where="/config/path") from None
        return
    decode = msgspec.json.Decoder(dict[str, Any]).decode
    for number, line in enumerate(io.BytesIO(body), start=1):
        if line.strip():
            try:
                yield number, decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError) as wrong:
                bad.note(number, str(wrong))


def _table(rows: Mapping[int, Mapping[str, Any]], shape: Shape, bad: Misfits) -> pa.Table:
    """Column by column; only where one does not fit are its values tried one by one."""
    import pyarrow as pa

    convert = {name: _converter(kind, from_text=shape.format == "csv") for name, kind in shape.columns.items()}
    for name, whole in convert.items():
        try:
            whole([row.get(name) for row in rows.values()])
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            _note_misfits(rows, name, shape.columns[name], whole, bad)
    kept = [row for line, row in rows.items() if line not in bad.lines]
    arrays = [whole([row.get(name) for row in kept]) for name, whole in convert.items()]
    return pa.table(arrays, names=list(convert))


def _note_misfits(
    rows: Mapping[int, Mapping[str, Any]], name: str, kind: str, convert: Callable[[list[Any]], Any], bad: Misfits
) -> None:
    import pyarrow as pa

    for line, row in rows.items():
        try:
            convert([row.get(name)])
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            bad.note(line, f"{name} is {str(row.get(name))[:80]!r}, which is no {kind}")


def _converter(kind: str, *, from_text: bool) -> Callable[[list[Any]], Any]:
    import pyarrow as pa

    to = arrow_type(kind)

    def convert(values: list[Any]) -> Any:
        if kind == "timestamp":
            values = [_zoned(value) for value in values]
        if from_text or kind in ("timestamp", "timestamp_ntz", "date", "binary") or kind.startswith("decimal"):
            return pa.array([None if value is None else str(value) for value in values], pa.string()).cast(to)
        if kind == "string":
            return pa.array([_as_text(value) for value in values], to)
        return pa.array(values, to)

    return convert


def _zoned(value: Any) -> Any:
    """A time without a zone is UTC."""
    return value if value is None or ZONED.fullmatch(str(value)) else f"{value}Z"


def _as_text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else msgspec.json.encode(value).decode()


def _guess_text(values: Sequence[str]) -> str:
    import pyarrow as pa

    for kind in ("bigint", "double", "boolean", "date", "timestamp"):
        try:
            _converter(kind, from_text=True)(list(values))
        except (pa.ArrowException, ValueError):
            continue
        return kind if values else "string"
    return "string"


def _guess_json(values: Sequence[Any]) -> str:
    kinds = {type(value) for value in values}
    if kinds == {bool}:
        return "boolean"
    if kinds == {int}:
        return "bigint"
    return "double" if kinds and kinds <= {int, float} else "string"
