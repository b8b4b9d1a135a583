"""Reads Parquet files of other writers as Arrow tables with given columns: matched by name, with unchanged values.

A file whose types cannot be converted is refused with both types. A value that does not fit is reported by column and
row, and its row may be left out, like a line of a CSV file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracelake.data.files.fit_column import fit, may_become, spark_type, unwrapped
from tracelake.data.files.shape import Misfits, Shape, arrow_type
from tracelake.errors import WorkFailed

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

REWRITE: Final = "write the file again, or leave it out by `pattern`"


def read_parquet(path: Path, name: str, shape: Shape) -> tuple[pa.Table, int]:
    """Return the rows of a file with exactly these columns, and how many rows were left out."""
    import pyarrow as pa

    bad = Misfits(name, shape.bad_lines, "row")
    wanted = {column: arrow_type(kind) for column, kind in shape.columns.items()}
    with _opened(path, name) as file:
        schema = file.schema_arrow
        shape.refuse_lacking(schema.names, name)
        there = [column for column in wanted if column in schema.names]
        for column in there:
            _refuse_type(schema, column, shape.columns[column], name)
        try:
            rows = file.read(columns=there)
            for column, nanoseconds in _old_times(path, file, there).items():
                _note_finer(rows.column(column), nanoseconds, column, shape.columns[column], bad)
        except (pa.ArrowException, OSError) as error:
            raise _unreadable(name, error) from None
    columns = {
        column: _fitted(rows.column(column), column, shape.columns[column], bad)
        if column in there
        else pa.chunked_array([pa.nulls(rows.num_rows, to)])
        for column, to in wanted.items()
    }
    table = pa.table(columns)
    if bad.lines:
        table = table.filter(pa.array([row not in bad.lines for row in range(1, table.num_rows + 1)], pa.bool_()))
    return table, len(bad.lines)


def infer_parquet(path: Path, name: str) -> dict[str, str]:
    """Return the names of a file's columns, with types that hold all values."""
    with _opened(path, name) as file:
        schema = file.schema_arrow
    kinds = {field.name: spark_type(field.type) for field in schema}
    if len(kinds) < len(schema) or not kinds:
        message = "two columns have one name" if kinds else "there are no columns"
        raise WorkFailed(f"{name}: {message}", where="/config/columns", hint="give `columns`")
    for column, kind in kinds.items():
        if kind is None:
            raise WorkFailed(
                f"{name}: {column} is {schema.field(column).type}, and files are read as no type that holds it",
                where="/config/columns",
                hint="give `columns`, and leave this one out",
            )
    return {column: kind for column, kind in kinds.items() if kind is not None}


def _opened(path: Path, name: str) -> pq.ParquetFile:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:  # INT96 times exceed the range of nanoseconds, and would overflow silently
        return pq.ParquetFile(path, coerce_int96_timestamp_unit="us")
    except (pa.ArrowException, ValueError, OSError) as error:
        raise _unreadable(name, error) from None


def _unreadable(name: str, error: Exception) -> WorkFailed:
    message = (str(error).splitlines() or [type(error).__name__])[0]
    return WorkFailed(f"{name} cannot be read as Parquet: {message}", where="/config/path", hint=REWRITE)


def _refuse_type(schema: pa.Schema, column: str, kind: str, name: str) -> None:
    if len(schema.get_all_field_indices(column)) > 1:
        raise WorkFailed(f"{name}: two columns are called {column}", where="/config/columns")
    have = schema.field(column).type
    if not may_become(have, arrow_type(kind)):
        near = spark_type(have)
        raise WorkFailed(
            f"{name}: {column} is {have}, which is not read as {kind}: values would not stay what they are",
            where="/config/columns",
            hint=f"read it as {near} and cast it in a `sql` job" if near else "leave it out of `columns`",
        )


def _old_times(path: Path, file: pq.ParquetFile, columns: Sequence[str]) -> dict[str, pa.ChunkedArray]:
    """Read INT96 columns again, in nanoseconds, as the file has them."""
    import pyarrow.parquet as pq

    leaves = [file.schema.column(number) for number in range(len(file.schema))]
    old = [leaf.path for leaf in leaves if leaf.physical_type == "INT96" and leaf.path in columns]
    if not old:
        return {}
    with pq.ParquetFile(path) as again:
        rows = again.read(columns=old)
    return {column: rows.column(column) for column in old}


def _note_finer(values: pa.ChunkedArray, nanoseconds: pa.ChunkedArray, column: str, kind: str, bad: Misfits) -> None:
    """Arrow truncates them to microseconds silently. Both sides overflow alike at 64 bits: all times compare."""
    import pyarrow as pa
    import pyarrow.compute as pc

    cut, whole = values.cast(pa.int64()), nanoseconds.cast(pa.int64())
    finer = pc.not_equal(pc.multiply(cut, 1000), whole)
    for number in pc.indices_nonzero(finer).to_pylist():
        bad.note(number + 1, f"{column} is '{whole[number]}' ({nanoseconds.type}), which is no {kind}")


def _fitted(values: pa.ChunkedArray, column: str, kind: str, bad: Misfits) -> pa.ChunkedArray:
    import pyarrow as pa

    fitting = _Fitting(column, kind, bad)
    row, pieces = 1, list[pa.Array]()
    for chunk in values.chunks:
        pieces.extend(fitting.pieces(chunk, row))
        row += len(chunk)
    return pa.chunked_array(pieces, arrow_type(kind))


class _Fitting:
    """Bisect the values that do not fit until the rows are found: few casts, however many rows there are."""

    def __init__(self, column: str, kind: str, bad: Misfits) -> None:
        self.column, self.kind, self.bad = column, kind, bad
        self.to = arrow_type(kind)

    def pieces(self, values: pa.Array, first_row: int) -> Iterator[pa.Array]:
        """NULL replaces a value that does not fit; its row is noted."""
        import pyarrow as pa

        try:
            yield fit(values, self.to)
        except (pa.ArrowInvalid, pa.ArrowCapacityError):
            if len(values) > 1:
                half = len(values) // 2
                yield from self.pieces(values.slice(0, half), first_row)
                yield from self.pieces(values.slice(half), first_row + half)
                return
            self.bad.note(first_row, f"{self.column} is {_value_text(values)}, which is no {self.kind}")
            yield pa.nulls(1, self.to)


def _value_text(values: pa.Array) -> str:
    """Return a value with its type. Times as the file counts them: not all have a date."""
    import pyarrow as pa

    plain = unwrapped(values)
    have = plain.type
    if pa.types.is_timestamp(have):
        plain = plain.cast(pa.int64())
    elif pa.types.is_string(have) or pa.types.is_large_string(have):
        plain = plain.cast(pa.large_binary())  # text that does not fit is not UTF-8
    return f"{str(plain[0].as_py())[:80]!r} ({have})"
