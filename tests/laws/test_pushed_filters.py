"""A filter said in SQL keeps the rows that Spark would keep: NULLs, NaN, byte order of text, quotes and backslashes."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import datasource as ds
from pyspark.sql import types as spark_types

from tracelake.data.postgres.sql_text import columns_of, condition, literal, quoted, ranges
from tracelake.errors import BadInput

Connection = psycopg.Connection[Any]

SCHEMA = spark_types.StructType(
    [
        spark_types.StructField("flag", spark_types.BooleanType()),
        spark_types.StructField("whole", spark_types.LongType()),
        spark_types.StructField("double", spark_types.DoubleType()),
        spark_types.StructField("words", spark_types.StringType()),
        spark_types.StructField("raw", spark_types.BinaryType()),
        spark_types.StructField("amount", spark_types.DecimalType(20, 2)),
        spark_types.StructField("day", spark_types.DateType()),
        spark_types.StructField("moment", spark_types.TimestampType()),
        spark_types.StructField("u256", spark_types.StringType()),
    ]
)
TEXTS = st.text(st.sampled_from("ab'\"\\%_é\U0001f600\n $"), max_size=4)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "flag": st.booleans(),
    "whole": st.integers(-3, 3) | st.sampled_from([-(2**63), 2**63 - 1]),
    "double": st.sampled_from([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 0.1, 1e300, -2.5]),
    "words": TEXTS,
    "raw": st.binary(max_size=3) | st.just(b"\0"),
    "amount": (st.integers(-300, 300) | st.sampled_from([10**20 - 1, 1 - 10**20])).map(
        lambda cents: Decimal(cents).scaleb(-2)
    ),
    "day": st.dates(dt.date(1999, 12, 30), dt.date(2000, 1, 3)),
    "moment": st.datetimes(dt.datetime(2000, 1, 1), dt.datetime(2000, 1, 1, 0, 0, 2)).map(  # noqa: DTZ001
        lambda at: at.replace(tzinfo=dt.UTC)
    ),
    "u256": st.integers(0, 12).map(str),
}
COMPARISONS = [ds.EqualTo, ds.EqualNullSafe, ds.GreaterThan, ds.GreaterThanOrEqual, ds.LessThan, ds.LessThanOrEqual]


def comparison(name: str) -> st.SearchStrategy[ds.Filter]:
    path, values = st.just((name,)), VALUES[name]
    kinds: list[st.SearchStrategy[Any]] = [st.builds(kind, path, values) for kind in COMPARISONS]
    kinds.append(st.builds(ds.In, path, st.lists(values | st.none(), min_size=1, max_size=4).map(tuple)))
    kinds += [st.builds(ds.IsNull, path), st.builds(ds.IsNotNull, path)]
    if name == "words":
        kinds += [st.builds(ds.StringStartsWith, path, TEXTS), st.builds(ds.StringContains, path, TEXTS)]
    return st.one_of(kinds)


PLAIN = st.sampled_from(list(VALUES)).flatmap(comparison)
FILTERS = PLAIN | st.builds(ds.Not, PLAIN)
ROWS = st.fixed_dictionaries({name: values | st.none() for name, values in VALUES.items()})


@pytest.fixture
def data(data_db: str) -> Iterator[Connection]:
    with psycopg.connect(data_db, autocommit=True) as connection:
        connection.execute("""CREATE TABLE hot.t (place int, flag bool, whole bigint, double float8, words text,
            raw bytea, amount numeric(20,2), day date, moment timestamptz, u256 numeric(78,0))""")
        yield connection


@settings(max_examples=250, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(rows=st.lists(ROWS, min_size=1, max_size=6), pushed=FILTERS)
def test_postgres_keeps_what_spark_would_keep(data: Connection, rows: list[dict[str, Any]], pushed: ds.Filter) -> None:
    said = condition(pushed, columns_of(SCHEMA))
    assert said is not None
    names = ", ".join(VALUES)
    with data.transaction(force_rollback=True):
        for place, row in enumerate(rows):
            insert = f"INSERT INTO hot.t (place, {names}) VALUES (%s, {', '.join(['%s'] * len(VALUES))})"  # noqa: S608
            data.execute(insert.encode(), (place, *(row[name] for name in VALUES)))
        found = data.execute(f"SELECT place FROM hot.t WHERE {said} ORDER BY place".encode()).fetchall()  # noqa: S608
    assert [place for (place,) in found] == [place for place, row in enumerate(rows) if matches(pushed, row) is True]


@settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(text=st.text(st.characters(codec="utf-8")), name=st.text(st.characters(codec="utf-8"), max_size=15))
def test_text_in_quotes_stays_text(data: Connection, text: str, name: str) -> None:
    constant = literal(text, "text")
    if constant is None:
        assert "\0" in text
        return
    assert data.execute(f"SELECT {constant}".encode().replace(b"%", b"%%"), ()).fetchone() == (text,)
    if name and "\0" not in name:
        cursor = data.execute(f"SELECT 1 AS {quoted(name)}".encode().replace(b"%", b"%%"), ())
        assert [column.name for column in cursor.description or ()] == [name]


@pytest.mark.parametrize(
    "left",
    [
        ds.EqualTo(("a", "b"), 1),
        ds.EqualTo(("unknown",), 1),
        ds.EqualTo(("words",), "a\0"),
        ds.EqualTo(("whole",), "1; DROP TABLE hot.t"),
        ds.EqualTo(("whole",), value=True),
        ds.EqualTo(("whole",), 2**63),
        ds.GreaterThan(("whole",), -(2**63) - 1),
        ds.EqualTo(("amount",), Decimal("NaN")),
        ds.EqualTo(("amount",), Decimal("0.005")),
        ds.LessThan(("amount",), Decimal("1e18")),
        ds.LessThan(("amount",), 10**21),
        ds.In(("whole",), (1, 10**21)),
        ds.Not(ds.EqualTo(("whole",), [1])),
        ds.In(("whole",), (1, "x")),
        ds.In(("whole",), ()),
        ds.In(("whole",), tuple(range(20_000))),
        ds.StringEndsWith(("words",), "x"),
    ],
)
def test_what_cannot_be_said_exactly_is_left_to_spark(left: ds.Filter) -> None:
    assert condition(left, columns_of(SCHEMA)) is None


@given(
    st.sets(st.integers(0, 60)).map(sorted),
    st.integers(0, 60),
)
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_many_ranges_are_the_same_numbers(data: Connection, edges: list[int], tried: int) -> None:
    pieces = [[start, stop] for start, stop in zip(edges[::2], edges[1::2], strict=False)]
    if pieces:
        said = ranges("n", pieces)
        found = data.execute(f"SELECT {said} FROM (SELECT {tried}::bigint AS n) AS t".encode()).fetchone()  # noqa: S608
        assert found == (any(start <= tried < stop for start, stop in pieces),)


def test_names_and_types_that_cannot_be_are_refused() -> None:
    with pytest.raises(BadInput):
        quoted("a\0b")
    with pytest.raises(BadInput, match="array<bigint>"):
        columns_of(spark_types.StructType().add("x", spark_types.ArrayType(spark_types.LongType())))


def matches(pushed: ds.Filter, row: dict[str, Any]) -> bool | None:  # noqa: PLR0911 - one line for each kind
    """Spark's meaning, in Python; None is SQL's unknown."""
    if isinstance(pushed, ds.Not):
        inner = matches(pushed.child, row)
        return None if inner is None else not inner
    value = row[pushed.attribute[0]]  # type: ignore[attr-defined]
    if isinstance(pushed, ds.IsNull):
        return value is None
    if isinstance(pushed, ds.IsNotNull):
        return value is not None
    if isinstance(pushed, ds.EqualNullSafe):
        return value is not None and rank(value) == rank(pushed.value)
    if value is None:
        return None
    if isinstance(pushed, ds.In):
        found = any(item is not None and rank(item) == rank(value) for item in pushed.value)
        return True if found else (None if None in pushed.value else False)
    return compared(pushed, value)


def compared(pushed: Any, value: Any) -> bool:
    if isinstance(pushed, ds.StringStartsWith):
        return bool(value.startswith(pushed.value))
    if isinstance(pushed, ds.StringContains):
        return pushed.value in value
    left, right = rank(value), rank(pushed.value)
    verdicts: dict[type, bool] = {
        ds.EqualTo: left == right,
        ds.GreaterThan: left > right,
        ds.GreaterThanOrEqual: left >= right,
        ds.LessThan: left < right,
        ds.LessThanOrEqual: left <= right,
    }
    return verdicts[type(pushed)]


def rank(value: Any) -> Any:
    """NaN is one value, above all others; text is ordered by its bytes."""
    if isinstance(value, float):
        return (1, 0.0) if value != value else (0, value)  # noqa: PLR0124 - that is what NaN is
    return value.encode() if isinstance(value, str) else value
