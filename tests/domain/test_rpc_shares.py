"""How a limit is divided among workers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tracelake.domain.flow.rpc_shares import Holding, PoolLimit, divide, grant

WANTED = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 40), min_size=1)


@given(limit=st.integers(1, 30), wanted=WANTED, turn=st.integers(0, 9))
def test_all_of_a_limit_is_divided_and_nobody_is_short_while_another_has_more_than_it_wants(
    limit: int, wanted: dict[str, int], turn: int
) -> None:
    shares = divide(limit, wanted, turn)
    assert sum(shares.values()) == limit
    for short in (worker for worker, wants in wanted.items() if shares[worker] < wants):
        for other, wants in wanted.items():
            assert shares[other] <= wants
            assert shares[short] >= shares[other] - 1


@given(limit=st.integers(1, 5), workers=st.integers(1, 6))
def test_where_there_are_fewer_places_than_workers_everyone_gets_its_turn(limit: int, workers: int) -> None:
    wanted = {f"w{number}": 3 for number in range(workers)}
    turns = [divide(limit, wanted, turn) for turn in range(workers)]
    assert all(any(shares[worker] for shares in turns) for worker in wanted)


def test_a_single_worker_gets_all_of_it_at_once() -> None:
    alone = Holding("a", PoolLimit(0, 0.0), 0, PoolLimit(8, 50.0))
    assert grant(alone, None, [], turn=0).use == PoolLimit(8, 50.0)


def test_a_lower_limit_of_one_worker_is_that_of_all() -> None:
    other = Holding("b", PoolLimit(1, 1.0), 9, PoolLimit(4, None))
    asks = Holding("a", PoolLimit(0, 0.0), 9, PoolLimit(8, 2.0))
    assert grant(asks, None, [other], turn=0).use == PoolLimit(2, 1.0)
