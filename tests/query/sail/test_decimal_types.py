"""The precision and scale that our rules give to decimals are Spark's."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tracelake.domain.sql.decimals import (
    DecimalType,
    average_type,
    floor_type,
    literal_type,
    result_type,
    round_type,
    sum_type,
    wider_type,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EDGES: list[DecimalType] = [
    (1, 0),
    (1, 1),
    (10, 0),
    (18, 18),
    (20, 0),
    (20, 4),
    (34, 0),
    (38, 0),
    (38, 6),
    (38, 18),
    (38, 38),
]
LITERALS = ("0.5", "1.50", "0.001", "000.10", "12345678901234567890.5", "0.0", "100.00", "99999999999999999999")


def a_type(made: random.Random) -> DecimalType:
    precision = made.randint(1, 38)
    return precision, made.randint(0, precision)


def test_operators_aggregates_and_literals_have_the_types_that_spark_gives_them(spark: SparkSession) -> None:
    made = random.Random(3)  # noqa: S311 - the same each time
    pairs = [(left, right) for left in EDGES for right in EDGES] + [(a_type(made), a_type(made)) for _ in range(150)]
    expected: dict[str, DecimalType] = {text: literal_type(text) for text in LITERALS}
    for left, right in pairs:
        first, second = (f"CAST(1 AS DECIMAL({p}, {s}))" for p, s in (left, right))
        for operator in "+-*/%":
            expected[f"{first} {operator} {second}"] = result_type(operator, left, right)
        if (wider := wider_type((left, right))) is not None:
            expected[f"coalesce({first}, {second})"] = wider
        expected[f"round({first}, {right[1]})"] = round_type(left, right[1])
        expected |= {f"floor({first})": floor_type(left), f"ceil({first})": floor_type(left)}
        expected |= {f"sum({first})": sum_type(left), f"avg({first})": average_type(left)}
    for kind in (False, True):
        texts = [text for text in expected if text.startswith(("sum", "avg")) is kind]
        columns = ", ".join(f"{text} AS c{at}" for at, text in enumerate(texts))
        fields = spark.sql(f"SELECT {columns}").schema.fields
        found = {text: item.dataType.simpleString() for text, item in zip(texts, fields, strict=True)}
        assert found == {text: "decimal({},{})".format(*expected[text]) for text in texts}
