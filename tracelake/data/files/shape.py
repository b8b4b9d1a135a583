"""How files are to be read: their columns, and what becomes of a line that does not fit."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from tracelake.errors import WorkFailed

if TYPE_CHECKING:
    import pyarrow as pa

Format = Literal["csv", "json", "parquet"]
TYPES: Final = re.compile(
    r"bigint|int|smallint|tinyint|double|float|boolean|string|binary|date|timestamp|timestamp_ntz"
    r"|decimal\((?P<digits>[1-9]|[12]\d|3[0-8]),(?P<scale>\d|[12]\d|3[0-8])\)"
)
MAX_LINES_REPORTED: Final = 5


@dataclass(frozen=True)
class Shape:
    """How files are to be read."""

    format: Format
    columns: Mapping[str, str]
    header: bool = True
    delimiter: str = ","
    bad_lines: int = 0
    """How many lines that do not fit are left out before a file is refused."""
    optional: tuple[str, ...] = ()
    """Columns that a file may lack: they are NULL in its rows."""

    def refuse_lacking(self, there: Sequence[str], said: str) -> None:
        """A file has these columns; `said` is its name, and where in it they stand."""
        missing = [name for name in self.columns if name not in there and name not in self.optional]
        if missing:
            raise WorkFailed(
                f"{said}: there is no column {', '.join(missing)}",
                where="/config/columns",
                hint="name it in `optional` too if it shall be NULL for such a file",
            )


@dataclass
class Misfits:
    """Lines left out, with the reason."""

    file: str
    allowed: int
    unit: Literal["line", "row"] = "line"
    lines: dict[int, str] = field(default_factory=dict)

    def note(self, line: int, reason: str) -> None:
        self.lines.setdefault(line, reason)
        if len(self.lines) > self.allowed:
            self.refuse()

    def refuse(self) -> None:
        told = "; ".join(
            f"{self.unit} {line}: {reason}" for line, reason in sorted(self.lines.items())[:MAX_LINES_REPORTED]
        )
        hint = "mend the file" if self.allowed else f"mend the file, or set `bad_lines` to leave such {self.unit}s out"
        raise WorkFailed(f"{self.file}: {told}", where="/config", hint=hint)


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
    found = TYPES.fullmatch(kind)
    if found is None:
        raise WorkFailed(f"{kind} is not a type that files are read as", where="/config/columns")
    return plain[kind] if kind in plain else pa.decimal128(int(found["digits"]), int(found["scale"]))
