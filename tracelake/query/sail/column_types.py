"""Reads the names of Spark's types without a JVM."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from tracelake.query.engine import CannotRun
from tracelake.wire.task.markers import ColumnEntry

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

DECIMAL: Final = re.compile(r"decimal\((\d+),\s*(\d+)\)")


def schema_of(columns: Iterable[ColumnEntry]) -> StructType:
    """Return the schema; lists, maps and structs are left to Spark."""
    from pyspark.sql import types as st

    return st.StructType([st.StructField(column.name, _type(column.type), nullable=True) for column in columns])


def _type(name: str) -> DataType:
    from pyspark.sql import types as st

    from tracelake.data.postgres.sql_text import KINDS

    if (numbers := DECIMAL.fullmatch(name)) is not None:
        return st.DecimalType(int(numbers[1]), int(numbers[2]))
    kind = next((kind for kind in KINDS if kind().simpleString() == name), None)
    if kind is None:
        raise CannotRun("types")
    return kind()
