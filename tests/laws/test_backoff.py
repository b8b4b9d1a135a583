"""The wait before a retry."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tracelake.domain.task import Backoff, retry_delay

CHANCE = st.floats(0, 1, exclude_max=True)
BACKOFFS = st.tuples(st.integers(1, 1000), st.integers(1, 1000)).map(lambda pair: Backoff(min(pair), max(pair)))


@given(st.integers(1, 10_000), BACKOFFS, CHANCE)
def test_never_under_half_the_step_never_over_the_longest(attempt: int, backoff: Backoff, chance: float) -> None:
    step = min(backoff.first_seconds * 2 ** (attempt - 1), backoff.longest_seconds)
    assert step / 2 <= retry_delay(attempt, backoff, chance) <= step


@given(st.integers(1, 100), BACKOFFS, CHANCE)
def test_a_later_attempt_never_waits_less(attempt: int, backoff: Backoff, chance: float) -> None:
    assert retry_delay(attempt, backoff, chance) <= retry_delay(attempt + 1, backoff, chance)


def test_the_default_doubles_from_thirty_seconds_to_ten_minutes() -> None:
    steps = [retry_delay(attempt, Backoff(), 1) for attempt in range(1, 8)]
    assert steps == [30, 60, 120, 240, 480, 600, 600]
