"""A `where` of the DAG selects the same rows on Spark as `filter_eval.holds`."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.evaluate_filter import holds
from tracelake.data.filter_column import as_column
from tracelake.domain.filter.parse import parse_where
from tracelake.domain.filter.tree import (
    AllOf,
    AnyOf,
    ColumnRef,
    Comparison,
    Exact,
    Filter,
    In,
    IsNull,
    Not,
    Op,
    Text,
    Whole,
)
from tracelake.errors import WorkFailed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MOST = 10**38 - 1
"""The largest number of 38 digits."""
WEI = 10**21
ROWS: list[dict[str, Any]] = [
    {"a": a, "b": b, "t": t, "wei": wei, "cents": cents}
    for a, b in [(None, None), (-1, 0), (0, None), (2, 2), (2**62, 0), (2**63 - 1, 2), (-(2**63), 2)]
    for t in (None, "", "x", "it's", "X")
    for wei, cents in [
        (None, None),
        (Decimal(0), Decimal("0.00")),
        (Decimal(1), Decimal("0.50")),
        (Decimal(2**63), Decimal("-0.01")),
        (Decimal(WEI - 1), Decimal("2.01")),
        (Decimal(WEI), Decimal("999999999999999999.99")),
        (Decimal(WEI + 1), Decimal("-999999999999999999.99")),
        (Decimal(MOST), Decimal("2.00")),
        (Decimal(-MOST), Decimal("100.00")),
    ]
]
WHOLE = [0, 1, 2, 100, 2**62, 2**63 - 1, 2**63, 2**64, 10**18, WEI - 1, WEI, WEI + 1, MOST - 1, MOST]
EXACT = ["0.5", "2.005", "2.01", "100", "0.00000000000000000000000000000000000001", "999999999999999999.99", "1E+21"]
NUMBERS = st.one_of(
    st.sampled_from([sign * item for item in WHOLE for sign in (1, -1)]).map(Whole),
    st.sampled_from([sign * Decimal(item) for item in EXACT for sign in (1, -1)]).map(Exact),
)
NUMBERED = st.sampled_from(["a", "b", "wei", "cents"])
TEXTS = st.sampled_from(["", "x", "X", "it's", "%", "\\"]).map(Text)
OPS = st.sampled_from(list(Op))
LEAVES = st.one_of(
    st.builds(Comparison, NUMBERED, OPS, NUMBERS),
    st.builds(Comparison, st.just("t"), OPS, TEXTS),
    st.builds(Comparison, st.just("a"), OPS, st.just(ColumnRef("b"))),
    st.builds(In, NUMBERED, st.lists(NUMBERS, min_size=1, max_size=3).map(tuple)),
    st.builds(In, st.just("t"), st.lists(TEXTS, min_size=1, max_size=3).map(tuple)),
    st.builds(IsNull, st.sampled_from(["a", "b", "t", "wei"])),
)
TREES: st.SearchStrategy[Filter] = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(Not, inner),
        st.builds(AllOf, st.lists(inner, min_size=2, max_size=3).map(tuple)),
        st.builds(AnyOf, st.lists(inner, min_size=2, max_size=3).map(tuple)),
    ),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def frame(spark: SparkSession) -> DataFrame:
    rows = [(n, *row.values()) for n, row in enumerate(ROWS)]
    return spark.createDataFrame(rows, "n int, a long, b long, t string, wei decimal(38,0), cents decimal(20,2)")


def check(frame: DataFrame, trees: list[Filter]) -> None:
    rows = frame.select(
        "n", *[as_column(tree, frame).alias(f"f{number}") for number, tree in enumerate(trees)]
    ).collect()
    for row in rows:
        for number, tree in enumerate(trees):
            assert row[f"f{number}"] == holds(tree, ROWS[row["n"]]), (tree, ROWS[row["n"]])


@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(trees=st.lists(TREES, min_size=10, max_size=10))
def test_a_filter_on_spark_keeps_the_matching_rows(frame: DataFrame, trees: list[Filter]) -> None:
    """Many trees in one job: Spark takes longer to start it than to run it."""
    check(frame, trees)


@pytest.mark.parametrize("column", ["a", "wei", "cents"])
def test_a_number_beyond_64_bits_or_between_two_values_is_compared_exactly(frame: DataFrame, column: str) -> None:
    """A number out of range is still more or less than all values; NULL stays unknown."""
    numbers: list[Whole | Exact] = [Whole(sign * item) for item in (2**63, WEI, MOST) for sign in (1, -1)]
    numbers += [Exact(Decimal(item)) for item in ("0.5", "-0.005", "100")]
    check(frame, [Comparison(column, op, number) for op in Op for number in numbers])
    check(frame, [In(column, tuple(numbers)), Not(In(column, tuple(numbers[:2]))), In(column, (Whole(2), numbers[2]))])


def test_text_is_not_compared_with_a_number_beyond_64_bits(frame: DataFrame) -> None:
    """Spark would do it in doubles, which are not exact."""
    with pytest.raises(WorkFailed, match="'t' is string") as refusal:
        as_column(parse_where(f"t = {WEI}"), frame)
    assert not refusal.value.retryable
    assert "single quotes" in (refusal.value.hint or "")
