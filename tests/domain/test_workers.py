"""How many workers are wanted, by the load and by what runs."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tracelake.domain.flow.workers import WorkerFleet, WorkerLoad, wanted_workers

IDLE = WorkerLoad(queued=0, leased=0, keep_warm_seconds=300)
FLEET = WorkerFleet(workers=1, least=0, most=4, slots=8, idle_seconds=0, spare_seconds=0, stop_after_seconds=30)
LOADS = st.builds(
    WorkerLoad,
    queued=st.integers(0, 200),
    leased=st.integers(0, 50),
    sources=st.integers(0, 3),
    next_retry_seconds=st.none() | st.floats(0, 1000),
    keep_warm_seconds=st.none() | st.floats(0, 1000),
)
SECONDS = st.floats(0, 10_000)


@st.composite
def fleets(draw: st.DrawFn) -> WorkerFleet:
    most = draw(st.integers(1, 10))
    return WorkerFleet(
        workers=draw(st.integers(0, most)),
        least=draw(st.integers(0, most)),
        most=most,
        slots=draw(st.integers(1, 20)),
        idle_seconds=draw(SECONDS),
        spare_seconds=draw(SECONDS),
        stop_after_seconds=draw(st.floats(0, 100)),
    )


def test_workers_are_added_at_once_and_stopped_after_a_while() -> None:
    busy = WorkerLoad(queued=20, leased=8)
    assert wanted_workers(busy, FLEET) == 4
    less = WorkerLoad(queued=0, leased=9)
    assert wanted_workers(less, replace(FLEET, workers=4, spare_seconds=29)) == 4
    assert wanted_workers(less, replace(FLEET, workers=4, spare_seconds=31)) == 2


def test_the_last_worker_stays_as_long_as_a_job_wants_to_be_waited_for() -> None:
    spare = replace(FLEET, spare_seconds=1000)
    assert wanted_workers(IDLE, replace(spare, idle_seconds=299)) == 1
    assert wanted_workers(IDLE, replace(spare, idle_seconds=300)) == 0
    assert wanted_workers(replace(IDLE, keep_warm_seconds=None), replace(spare, idle_seconds=10**6)) == 1
    assert wanted_workers(replace(IDLE, sources=1), replace(spare, idle_seconds=10**6)) == 1
    assert wanted_workers(replace(IDLE, next_retry_seconds=5), replace(spare, idle_seconds=10**6)) == 1
    assert wanted_workers(replace(IDLE, next_retry_seconds=500), replace(spare, idle_seconds=10**6)) == 0


def test_from_none_a_worker_is_started_for_work_and_for_a_job_that_is_never_cold() -> None:
    none = replace(FLEET, workers=0)
    assert wanted_workers(IDLE, none) == 0
    assert wanted_workers(replace(IDLE, queued=1), none) == 1
    assert wanted_workers(replace(IDLE, keep_warm_seconds=None), none) == 1


@given(LOADS, fleets())
def test_the_number_is_within_its_limits_and_work_always_has_a_worker(load: WorkerLoad, fleet: WorkerFleet) -> None:
    wanted = wanted_workers(load, fleet)
    assert fleet.least <= wanted <= fleet.most
    assert wanted >= 1 or load.is_idle
    if wanted < fleet.workers:
        assert fleet.spare_seconds >= fleet.stop_after_seconds
        assert wanted * fleet.slots >= load.queued + load.leased


@given(LOADS, fleets(), st.integers(1, 100))
def test_more_work_never_wants_fewer_workers(load: WorkerLoad, fleet: WorkerFleet, more: int) -> None:
    assert wanted_workers(replace(load, queued=load.queued + more), fleet) >= wanted_workers(load, fleet)


@given(LOADS, fleets())
def test_what_is_wanted_is_wanted_again_when_it_is_there(load: WorkerLoad, fleet: WorkerFleet) -> None:
    """Nothing is started and stopped in turns under the same load."""
    wanted = wanted_workers(load, fleet)
    assert wanted_workers(load, replace(fleet, workers=wanted)) == wanted
