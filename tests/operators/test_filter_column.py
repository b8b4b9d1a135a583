"""A `where` of the DAG means on Spark what it means everywhere: row for row what `filter_eval.holds` says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trace_platform.domain.filter_eval import holds
from trace_platform.domain.filters import AllOf, AnyOf, Column, Comparison, Filter, In, IsNull, Not, Op, Text, Whole
from trace_platform.spark.filter_column import as_column

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS: list[dict[str, Any]] = [
    {"a": a, "b": b, "t": t}
    for a in (None, -1, 0, 2, 2**62)
    for b in (None, 0, 2)
    for t in (None, "", "x", "it's", "X")
]
NUMBERS = st.sampled_from([-1, 0, 1, 2, 2**62]).map(Whole)
TEXTS = st.sampled_from(["", "x", "X", "it's", "%", "\\"]).map(Text)
OPS = st.sampled_from(list(Op))
LEAVES = st.one_of(
    st.builds(Comparison, st.sampled_from(["a", "b"]), OPS, NUMBERS),
    st.builds(Comparison, st.just("t"), OPS, TEXTS),
    st.builds(Comparison, st.just("a"), OPS, st.just(Column("b"))),
    st.builds(In, st.sampled_from(["a", "b"]), st.lists(NUMBERS, min_size=1, max_size=3).map(tuple)),
    st.builds(In, st.just("t"), st.lists(TEXTS, min_size=1, max_size=3).map(tuple)),
    st.builds(IsNull, st.sampled_from(["a", "b", "t"])),
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


@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(trees=st.lists(TREES, min_size=10, max_size=10))
def test_a_filter_on_spark_keeps_the_rows_that_hold(spark: SparkSession, trees: list[Filter]) -> None:
    """Many trees in one job: Spark takes longer to begin than to do this."""
    frame = spark.createDataFrame(
        [(n, row["a"], row["b"], row["t"]) for n, row in enumerate(ROWS)], "n int, a long, b long, t string"
    )
    told = frame.select(
        "n", *[as_column(tree, frame).alias(f"f{number}") for number, tree in enumerate(trees)]
    ).collect()
    for row in told:
        for number, tree in enumerate(trees):
            assert row[f"f{number}"] == holds(tree, ROWS[row["n"]]), (tree, ROWS[row["n"]])
