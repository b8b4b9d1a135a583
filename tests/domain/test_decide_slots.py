"""What becomes of slots that are due: laws over made-up schedules, standstills and rules."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from tracelake.domain.sources.decide_slots import (
    MOST_AT_ONCE,
    ON_TIME,
    Overlap,
    Rules,
    ScheduleState,
    SlotReason,
    decide_slots,
    delay_of,
    next_slots,
)
from tracelake.domain.sources.schedule import Schedule

NOW = datetime(2030, 5, 5, 12, 0, 30, tzinfo=UTC)
MINUTELY = Schedule("* * * * *")

standings = st.builds(
    ScheduleState,
    st.just(NOW),
    st.integers(0, 300).map(lambda minutes: NOW - timedelta(minutes=minutes)),
    st.booleans(),
    st.integers(0, 3),
)
rules = st.builds(
    Rules,
    st.sampled_from([MINUTELY, Schedule("rate(7 minutes)"), Schedule("*/5 * * * *", "Asia/Kathmandu")]),
    st.sampled_from(Overlap),
    st.none() | st.integers(1, 400).map(lambda minutes: timedelta(minutes=minutes)),
    st.integers(0, 600).map(lambda seconds: timedelta(seconds=seconds)),
)


@given(rules, standings)
def test_every_slot_that_is_due_is_decided_once_and_the_next_is_later(rule: Rules, standing: ScheduleState) -> None:
    decision = decide_slots(rule, standing)
    slots = [slot.at for slot in decision.slots]
    assert slots == sorted(set(slots))
    assert all(standing.decided_until < slot <= NOW - rule.delay for slot in slots)
    assert decision.next_due is not None
    assert decision.next_due > NOW
    again = decide_slots(rule, ScheduleState(NOW, decision.decided_until))
    assert again.slots == ()


@given(rules, standings)
def test_a_decision_in_two_steps_is_the_same_as_in_one(rule: Rules, standing: ScheduleState) -> None:
    whole = decide_slots(rule, standing).slots
    first = whole[: len(whole) // 2]
    if first:
        fired = sum(slot.reason is None for slot in first)
        rest = ScheduleState(NOW, first[-1].at, standing.paused, standing.open_tasks + fired)
        assert (*first, *decide_slots(rule, rest).slots) == whole


@given(rules, standings)
def test_reasons_are_those_of_the_rules(rule: Rules, standing: ScheduleState) -> None:
    decision = decide_slots(rule, standing)
    for slot in decision.slots:
        late = NOW - rule.delay - slot.at
        assert (slot.reason is SlotReason.PAUSED) == standing.paused
        if not standing.paused:
            allowed = max(rule.catch_up or ON_TIME, ON_TIME)
            assert (slot.reason in {SlotReason.MISSED, SlotReason.BEYOND_CATCH_UP}) == (late > allowed)
            assert slot.reason is not SlotReason.MISSED or rule.catch_up is None
    fired = sum(slot.reason is None for slot in decision.slots)
    most = {Overlap.SKIP: 1, Overlap.BUFFER_ONE: 2}.get(rule.overlap)
    if most is not None:
        assert fired <= max(most - standing.open_tasks, 0)


def test_after_a_long_standstill_slots_are_decided_some_at_a_time() -> None:
    standing, total = ScheduleState(NOW, NOW - timedelta(days=2)), 0
    while (decision := decide_slots(Rules(MINUTELY), standing)).next_due == NOW:
        assert len(decision.slots) == MOST_AT_ONCE
        total += len(decision.slots)
        standing = ScheduleState(NOW, decision.decided_until)
    assert total + len(decision.slots) == 2 * 24 * 60


def test_the_delay_is_a_part_of_the_jitter_that_the_name_decides() -> None:
    delays = {delay_of(f"dag.job_{number}", 600) for number in range(100)}
    assert len(delays) > 50
    assert all(timedelta() <= delay <= timedelta(minutes=10) for delay in delays)
    assert delay_of("dag.job", 600) == delay_of("dag.job", 600)
    assert delay_of("dag.job", 0) == timedelta()


def test_the_next_slots_are_those_whose_turn_is_to_come() -> None:
    assert next_slots(Rules(MINUTELY), NOW, 2) == [NOW.replace(minute=1, second=0), NOW.replace(minute=2, second=0)]
    late = Rules(MINUTELY, delay=timedelta(minutes=5))
    assert next_slots(late, NOW, 1) == [NOW.replace(hour=11, minute=56, second=0)]
