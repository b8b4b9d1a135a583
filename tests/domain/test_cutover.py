"""Limits of a cutover: what exceeds them, and what is none."""

from __future__ import annotations

import pytest

from tracelake.domain.cutover import Figures, exceeded, read_limit

FOUND = Figures(rows_a=1_000, rows_b=1_005, only_a=5, only_b=10, changed=10, by_key=True)


@pytest.mark.parametrize(
    ("limits", "found"),
    [
        ({"max_changed_rows": "1%", "max_missing_keys": 5, "max_added_rows": 10, "max_row_count_change": "0.5%"}, []),
        ({"max_changed_rows": "0.99%"}, ["changed rows: 10 (1% of 1,000 rows), and `max_changed_rows` is 0.99%"]),
        ({"max_missing_keys": 0}, ["missing keys: 5 (0.5% of 1,000 rows), and `max_missing_keys` is 0"]),
        ({"max_added_rows": 9}, ["added rows: 10 (1% of 1,000 rows), and `max_added_rows` is 9"]),
        ({"max_row_count_change": 4}, ["row count change: 5 (0.5% of 1,000 rows), and `max_row_count_change` is 4"]),
    ],
)
def test_a_limit_is_exceeded_by_more_than_it_allows(limits: dict[str, int | str], found: list[str]) -> None:
    assert [str(item) for item in exceeded(limits, FOUND)] == found


def test_percentages_are_exact() -> None:
    """0.29 is a little less than 29 hundredths as a float."""
    rows = 100_000_000_000_000_000
    one_more = Figures(rows, rows, 0, 0, rows * 29 // 10_000 + 1, by_key=True)
    assert list(exceeded({"max_changed_rows": "0.29%"}, one_more))
    assert not list(
        exceeded({"max_changed_rows": "0.29%"}, Figures(rows, rows, 0, 0, rows * 29 // 10_000, by_key=True))
    )


def test_without_a_key_every_row_that_differs_counts_as_changed() -> None:
    whole = Figures(rows_a=100, rows_b=100, only_a=3, only_b=7, changed=0, by_key=False)
    assert [item.figure for item in exceeded({"max_changed_rows": 0}, whole)] == [7]


def test_of_nothing_any_row_is_more_than_a_percentage() -> None:
    (found,) = exceeded({"max_added_rows": "100%"}, Figures(0, 1, 0, 1, 0, by_key=True))
    assert str(found) == "added rows: 1, and `max_added_rows` is 100%"


@pytest.mark.parametrize("text", [0, 7, "0%", "100%", "0.5%", "12.345678 %"])
def test_a_count_and_a_percentage_are_limits(text: object) -> None:
    assert read_limit(text) == text


NOT_LIMITS = (-1, 1.5, True, None, 10**16, "5", "-1%", "101%", "100.1%", "%", "1 percent", "1e2%", "٣%")


@pytest.mark.parametrize("text", NOT_LIMITS)
def test_anything_else_is_none(text: object) -> None:
    assert read_limit(text) is None
