"""How files are read: their columns, and what happens to lines that do not fit."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from tracelake.errors import WorkFailed

if TYPE_CHECKING:
    import pyarrow as pa

FileFormat = Literal["csv", "json", "parquet"]
TYPES: Final = re.compile(
    r"bigint|int|smallint|tinyint|double|float|boolean|string|binary|date|timestamp|timestamp_ntz"
    r"|decimal\((?P<digits>[1-9]|[12]\d|3[0-8]),(?P<scale>\d|[12]\d|3[0-8])\)"
)
MAX_LINES_REPORTED: Final = 5


@dataclass(frozen=True)
class Shape:
    """How files are read."""

    format: FileFormat
    columns: Mapping[str, str]
    header: bool = True
    delimiter: str = ","
    bad_lines: int = 0
    """How many lines that do not fit are left out before a file is refused."""
    optional: tuple[str, ...] = ()
    """Columns that a file may lack: they are NULL in its rows."""

    def refuse_lacking(self, columns: Sequence[str], place: str) -> None:
        """Raise if a file lacks columns; `place` is its name, with the line of its column names."""
        missing = [name for name in self.columns if name not in columns and name not in self.optional]
        if missing:
            raise WorkFailed(
                f"{place}: there is no column {', '.join(missing)}",
                where="/config/columns",
                hint="name it in `optional` too if it should be NULL for such a file",
            )


@dataclass
class Misfits:
    """Lines that were left out, with the reason."""

    file: str
    allowed: int
    unit: Literal["line", "row"] = "line"
    lines: dict[int, str] = field(default_factory=dict)

    def note(self, line: int, reason: str) -> None:
        self.lines.setdefault(line, reason)
        if len(self.lines) > self.allowed:
            self.refuse()

    def refuse(self) -> None:
        reasons = "; ".join(
            f"{self.unit} {line}: {reason}" for line, reason in sorted(self.lines.items())[:MAX_LINES_REPORTED]
        )
        leave_out = "" if self.allowed else f", or set `bad_lines` to leave such {self.unit}s out"
        hint = f"correct the file{leave_out}"
        raise WorkFailed(f"{self.file}: {reasons}", where="/config", hint=hint)


def arrow_type(kind: str) -> pa.DataType:
    import pyarrow as pa

    plain = {
        "bigint": pa.int64(),
        "int": pa.int32(),
        "smallint": pa.int16(),
        "tinyint": pa.int8(),
        "double": pa.float64(),
        "float": pa.float32(),
        "boolean": pa.bool_(),
        "string": pa.string(),
        "binary": pa.binary(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us", "UTC"),
        "timestamp_ntz": pa.timestamp("us"),
    }
    match = TYPES.fullmatch(kind)
    if match is None:
        raise WorkFailed(f"{kind} is not a type that files are read as", where="/config/columns")
    return plain[kind] if kind in plain else pa.decimal128(int(match["digits"]), int(match["scale"]))
