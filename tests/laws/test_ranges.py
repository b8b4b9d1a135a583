"""Range algebra, checked against plain sets of numbers."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.tiling import tiles
from tracelake.domain.ranges import (
    MAX_END,
    InvalidRange,
    Range,
    format_file_part,
    format_partition_key,
    holes,
    inclusive,
    intersect,
    is_partition_key,
    merge,
    not_replaced,
    overlapping,
    parse_partition_key,
    split,
    split_aligned,
    subtract,
)

EDGE = st.integers(0, MAX_END)


@st.composite
def spans(draw: st.DrawFn, most: int = 60) -> Range:
    start = draw(st.integers(0, most))
    return inclusive(start, draw(st.integers(start, most)))


WIDE = st.tuples(EDGE, EDGE).map(lambda ends: inclusive(min(ends), max(ends)))
MANY = st.lists(spans(), max_size=8)


def numbers(*ranges: Range) -> set[int]:
    return {number for span in ranges for number in range(span.start, span.stop)}


@given(WIDE)
def test_edges_and_inclusive_are_inverse(span: Range) -> None:
    assert inclusive(*span.edges) == span
    assert len(span) == span.edges[1] - span.edges[0] + 1


@given(WIDE)
def test_what_is_written_is_read_back(span: Range) -> None:
    assert parse_partition_key(format_partition_key(span)) == span
    assert tuple(map(int, format_file_part(span).split("_"))) == span.edges
    assert is_partition_key(format_partition_key(span))


@given(st.text("0123456789-_ +٣", max_size=45))
def test_any_text_is_a_range_in_its_one_spelling_or_refused(text: str) -> None:
    try:
        span = parse_partition_key(text)
    except InvalidRange:
        assert not is_partition_key(text)
    else:
        assert format_partition_key(span) == text
        assert is_partition_key(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5",
        "-",
        "5-",
        "-5",
        "5-4",
        "05-6",
        "5-06",
        "+5-6",
        "5 - 6",
        "5--6",
        "1_000-2_000",
        f"0-{MAX_END + 1}",
        "9" * 5000 + "-1",
    ],
)
def test_other_texts_are_refused_with_a_typed_error(text: str) -> None:
    with pytest.raises(InvalidRange) as refusal:
        parse_partition_key(text)
    assert refusal.value.code == "invalid_range"
    assert refusal.value.hint


def test_the_largest_range_fits_an_int8range() -> None:
    whole = inclusive(0, MAX_END)
    assert whole.stop == 2**63 - 1
    for start, end in ((-1, 5), (6, 5), (0, MAX_END + 1)):
        with pytest.raises(InvalidRange):
            inclusive(start, end)


@given(spans(), st.integers(1, 70))
def test_chunks_tile_the_whole(span: Range, size: int) -> None:
    for chunks in (list(split(span, size)), list(split_aligned(span, size))):
        assert tiles(chunks, span)
        assert all(len(chunk) <= size for chunk in chunks)
    assert all(chunk.stop % size == 0 for chunk in list(split_aligned(span, size))[:-1])
    assert all(len(chunk) == size for chunk in list(split(span, size))[:-1])


@given(spans(), spans(), st.integers(1, 20))
def test_aligned_chunks_of_different_requests_are_the_same_inside(item: Range, other: Range, size: int) -> None:
    inner = {chunk for chunk in split_aligned(item, size) if len(chunk) == size and other.covers(chunk)}
    assert inner <= set(split_aligned(other, size))


def test_chunks_of_nothing_are_refused() -> None:
    for size in (0, -1):
        for way in (split, split_aligned):
            with pytest.raises(InvalidRange):
                list(way(inclusive(0, 9), size))


@given(MANY)
def test_merge_keeps_the_numbers_and_leaves_gaps(ranges: list[Range]) -> None:
    merged = merge(ranges)
    assert numbers(*merged) == numbers(*ranges)
    assert all(item.stop < following.start for item, following in pairwise(merged))


@given(MANY, MANY)
def test_intersect_and_subtract_are_those_of_sets(item: list[Range], others: list[Range]) -> None:
    assert numbers(*intersect(item, others)) == numbers(*item) & numbers(*others)
    assert numbers(*subtract(item, others)) == numbers(*item) - numbers(*others)
    assert merge(subtract(item, others)) == subtract(item, others)
    assert merge([*subtract(item, others), *intersect(item, others)]) == merge(item)


@given(MANY, st.randoms())
def test_of_ranges_that_replace_each_other_the_latest_keeps_each_number(ranges: list[Range], order: Random) -> None:
    commits = order.sample(range(100), len(ranges))
    remaining = not_replaced(list(zip(ranges, commits, strict=True)))
    for span, commit, left in zip(ranges, commits, remaining, strict=True):
        later = numbers(*(other for other, number in zip(ranges, commits, strict=True) if number > commit))
        assert numbers(*left) == numbers(span) - later
        assert left == merge(left)


@given(MANY, spans())
def test_tiles_means_each_number_once(ranges: list[Range], whole: Range) -> None:
    counted = [number for span in ranges for number in range(span.start, span.stop)]
    assert tiles(ranges, whole) == (sorted(counted) == list(range(whole.start, whole.stop)))
    exact = not holes(ranges, whole) and not overlapping(ranges) and all(whole.covers(span) for span in ranges)
    assert tiles(ranges, whole) == exact


@given(MANY)
def test_overlapping_finds_a_pair_exactly_if_there_is_one(ranges: list[Range]) -> None:
    shared = any(item.overlaps(other) for i, item in enumerate(ranges) for other in ranges[:i])
    assert bool(overlapping(ranges)) == shared
    assert all(item.overlaps(other) for item, other in overlapping(ranges))


@given(spans(), st.integers(0, 60))
def test_membership_is_half_open_inside_and_inclusive_at_the_edge(span: Range, number: int) -> None:
    start, end = span.edges
    assert (number in span) == (start <= number <= end)
