"""Maps Arrow types to Postgres types, and refuses the others.

A text column may be stored as `jsonb` or as a wide `numeric` (a 256-bit number has 78 digits, Arrow's widest decimal
76): its field has the metadata `{"postgres": "numeric(78,0)"}`. It is read as text.
"""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa

from tracelake.errors import BadInput

KEY: Final = b"postgres"
ASKED: Final = re.compile(r"jsonb|numeric\(([1-9][0-9]{0,2}),([0-9]{1,3})\)")
NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")
MOST_COLUMNS: Final = 500

PLAIN: Final = {
    pa.bool_(): "boolean",
    pa.int16(): "smallint",
    pa.int32(): "integer",
    pa.int64(): "bigint",
    pa.float32(): "real",
    pa.float64(): "double precision",
    pa.string(): "text",
    pa.large_string(): "text",
    pa.binary(): "bytea",
    pa.large_binary(): "bytea",
    pa.date32(): "date",
    pa.timestamp("us", "UTC"): "timestamp with time zone",
    pa.timestamp("us"): "timestamp without time zone",
}


def wide(name: str, postgres: str, *, nullable: bool = True) -> pa.Field:
    """A text field that Postgres stores as `jsonb` or `numeric(p,s)`."""
    return pa.field(name, pa.string(), nullable=nullable, metadata={KEY: postgres.encode()})


def postgres_type(field: pa.Field) -> str:
    requested = (field.metadata or {}).get(KEY, b"").decode()
    if requested:
        return _requested(field, requested)
    if pa.types.is_decimal(field.type):
        return f"numeric({field.type.precision},{field.type.scale})"
    if pa.types.is_fixed_size_binary(field.type):
        return "bytea"
    postgres_type_name = PLAIN.get(field.type)
    if postgres_type_name is None:
        raise BadInput(
            f"column {field.name} has type {field.type}, which cannot be stored in Postgres",
            where=field.name,
            hint="use whole numbers up to 64 bits, floats, decimals, text, bytes, booleans, dates or timestamps in "
            "microseconds; write lists and structs as JSON text, stored as jsonb",
        )
    return postgres_type_name


def check_names(schema: pa.Schema) -> None:
    """Check the names: they are quoted in SQL, and used in Spark, which ignores case."""
    wrong = [name for name in schema.names if not NAME.fullmatch(name)]
    if wrong or len(set(schema.names)) != len(schema.names) or not 0 < len(schema.names) <= MOST_COLUMNS:
        raise BadInput(
            f"a table has 1 to {MOST_COLUMNS} columns with different names in lower snake case",
            where=(wrong or [", ".join(schema.names)])[0][:200],
        )


def _requested(field: pa.Field, requested: str) -> str:
    if not ASKED.fullmatch(requested) or not (pa.types.is_string(field.type) or pa.types.is_large_string(field.type)):
        raise BadInput(
            f"column {field.name} asks Postgres for {requested!r}",
            where=field.name,
            hint="only text can be stored as another type: jsonb or numeric(p,s)",
        )
    return requested
