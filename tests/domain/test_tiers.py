"""How a taker shares its slots among the tiers."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tracelake.domain.flow.pressure import Priority
from tracelake.domain.flow.tiers import TierShares, queue_of_tier
from tracelake.ports import QUEUE_NAME


def take(shares: TierShares, waiting: Counter[Priority], free: int, bulk_running: int) -> Counter[Priority]:
    """What a queue would give for what is wanted."""
    wanted, taken, room = shares.want(free, bulk_running), Counter[Priority](), free
    for tier, most in wanted:
        taken[tier] = min(most, waiting[tier], room)
        room -= taken[tier]
    waiting.subtract(taken)
    shares.took(wanted, taken[Priority.NORMAL], taken[Priority.BULK])
    return taken


def many() -> Counter[Priority]:
    return Counter(dict.fromkeys(Priority, 100_000))


def test_while_both_have_work_bulk_gets_its_share_and_no_more() -> None:
    shares, waiting, taken = TierShares(slots=8, weight=20, reserved=1), many(), Counter[Priority]()
    for free in [1, 3, 8, 2] * 500:
        taken += take(shares, waiting, free, bulk_running=0)
    share = taken[Priority.BULK] / taken.total()
    assert abs(share - 1 / 21) < 0.2 / 21


def test_a_tier_without_work_leaves_its_slots_to_the_other() -> None:
    shares = TierShares(slots=8, weight=20, reserved=1)
    assert take(shares, Counter({Priority.BULK: 100}), 8, 0) == {Priority.NORMAL: 0, Priority.BULK: 7}
    assert take(shares, Counter({Priority.NORMAL: 100}), 8, 0)[Priority.NORMAL] == 8
    assert take(shares, Counter({Priority.NORMAL: 2, Priority.BULK: 100}), 8, 0)[Priority.BULK] == 6


def test_bulk_that_had_no_work_saves_up_no_claim() -> None:
    shares = TierShares(slots=8, weight=20, reserved=1)
    for _ in range(1000):
        take(shares, Counter({Priority.NORMAL: 8}), 8, 0)
    taken = sum((take(shares, many(), 8, 0) for _ in range(5)), Counter[Priority]())
    assert taken[Priority.BULK] <= 2


def test_long_bulk_tasks_hold_no_more_than_their_share_while_normal_work_waits() -> None:
    shares, waiting, running = TierShares(slots=8, weight=20, reserved=1), many(), 0
    for _ in range(1000):
        running += take(shares, waiting, 8 - running, running)[Priority.BULK]  # they do not end
    assert running == 1


@given(st.integers(1, 64), st.integers(0, 70), st.integers(1, 50), st.data())
def test_no_slot_stays_free_while_there_is_work_but_those_reserved(
    slots: int, reserved: int, weight: int, data: st.DataObject
) -> None:
    shares = TierShares(slots, weight, reserved)
    kept = min(reserved, slots - 1)
    for _ in range(10):
        bulk_running = data.draw(st.integers(0, slots - kept))
        free = data.draw(st.integers(0, slots - bulk_running))
        waiting = Counter({tier: data.draw(st.integers(0, 80)) for tier in Priority})
        left = Counter(waiting)
        room, bulk = free, bulk_running
        while room and (taken := take(shares, left, room, bulk)).total():
            room, bulk = room - taken.total(), bulk + taken[Priority.BULK]
        assert room == 0 or (left[Priority.NORMAL] == 0 and (left[Priority.BULK] == 0 or bulk == slots - kept))


def test_every_tier_has_a_queue_that_any_adapter_can_name() -> None:
    names = {queue_of_tier("q" * 59, tier) for tier in Priority}
    assert len(names) == 2
    assert all(len(name) <= 64 for name in names)
    assert "{1,64}" in QUEUE_NAME
    assert queue_of_tier("tasks-ecs_platform", Priority.NORMAL) == "tasks-ecs_platform", "as before there were tiers"
