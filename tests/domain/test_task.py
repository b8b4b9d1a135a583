"""The task machine: its table, S10 (late replies) and S11 (waits or final)."""

from __future__ import annotations

import pytest

from tests.support.task_machine import (
    ENDED,
    NEW_ATTEMPT,
    TRANSITIONS,
    Phase,
    Verb,
    after,
    after_failure,
    phase_of,
    state_of,
)
from tracelake.domain.task import NotClaimedReason, TaskState, why_not_claimed
from tracelake.errors import Conflict

LATE = (Phase.LOST_WAITING, Phase.LOST_FINAL)
REPORTED = (Phase.FAILED_WAITING, Phase.FAILED_FINAL)


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("verb", Verb)
def test_a_verb_leads_where_the_table_says_or_is_a_conflict(phase: Phase, verb: Verb) -> None:
    if (phase, verb) in TRANSITIONS:
        assert after(phase, verb) is TRANSITIONS[phase, verb]
    else:
        with pytest.raises(Conflict):
            after(phase, verb)


@pytest.mark.parametrize("phase", Phase)
def test_columns_and_phase_convert_into_each_other(phase: Phase) -> None:
    waits = phase in {Phase.FAILED_WAITING, Phase.LOST_WAITING}
    assert phase_of(state_of(phase), waits=waits, timed_out=phase in LATE) is phase


def test_only_a_queued_task_can_be_claimed() -> None:
    assert {phase for phase, verb in TRANSITIONS if verb is Verb.CLAIM} == {Phase.QUEUED}


@pytest.mark.parametrize("phase", LATE)
def test_a_late_reply_is_accepted_while_no_newer_attempt_has_started(phase: Phase) -> None:
    assert after(phase, Verb.COMPLETE) is Phase.COMPLETED
    assert after(phase, Verb.EMIT) is phase


@pytest.mark.parametrize("phase", [Phase.QUEUED, Phase.COMPLETED, Phase.CANCELED, *REPORTED])
def test_no_other_reply_is_accepted_after_the_end_of_the_attempt(phase: Phase) -> None:
    for verb in (Verb.COMPLETE, Verb.FAIL, Verb.EMIT, Verb.RENEW):
        with pytest.raises(Conflict):
            after(phase, verb)


def test_a_heartbeat_never_brings_a_lost_attempt_back() -> None:
    assert {phase for phase, verb in TRANSITIONS if verb is Verb.RENEW} == {Phase.RUNNING}


def test_only_another_attempt_or_a_claim_that_is_undone_leads_back_to_queued() -> None:
    back = {verb for (_, verb), to in TRANSITIONS.items() if to is Phase.QUEUED}
    assert back == NEW_ATTEMPT | {Verb.RELEASE}
    assert {phase for phase, verb in TRANSITIONS if verb is Verb.RELEASE} == {Phase.RUNNING}


def test_an_ended_task_changes_only_by_a_user_or_a_late_reply() -> None:
    by_itself = {Verb.CLAIM, Verb.RENEW, Verb.TIME_OUT, Verb.RETRY, Verb.GIVE_UP}
    assert not {(phase, verb) for phase, verb in TRANSITIONS if phase in ENDED and verb in by_itself}
    assert not {verb for phase, verb in TRANSITIONS if phase in {Phase.COMPLETED, Phase.CANCELED}}


@pytest.mark.parametrize(
    ("verb", "attempt", "retryable", "expected"),
    [
        (Verb.FAIL, 1, True, Phase.FAILED_WAITING),
        (Verb.FAIL, 3, True, Phase.FAILED_FINAL),
        (Verb.FAIL, 1, False, Phase.FAILED_FINAL),
        (Verb.TIME_OUT, 2, True, Phase.LOST_WAITING),
        (Verb.TIME_OUT, 3, True, Phase.LOST_FINAL),
        (Verb.TIME_OUT, 4, True, Phase.LOST_FINAL),
    ],
)
def test_a_failure_waits_while_attempts_are_left(verb: Verb, attempt: int, *, retryable: bool, expected: Phase) -> None:
    phase = after_failure(Phase.RUNNING, verb, attempt=attempt, max_attempts=3, retryable=retryable)
    assert phase is expected


def test_a_late_failure_ends_the_wait_for_a_reply() -> None:
    assert after_failure(Phase.LOST_WAITING, Verb.FAIL, attempt=1, max_attempts=3) is Phase.FAILED_WAITING
    assert after_failure(Phase.LOST_FINAL, Verb.FAIL, attempt=3, max_attempts=3) is Phase.FAILED_FINAL


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (None, NotClaimedReason.NOT_FOUND),
        (TaskState.QUEUED, None),
        (TaskState.RUNNING, NotClaimedReason.ALREADY_RUNNING),
        (TaskState.COMPLETED, NotClaimedReason.COMPLETED),
        (TaskState.FAILED, NotClaimedReason.COMPLETED),
        (TaskState.CANCELED, NotClaimedReason.CANCELED),
    ],
)
def test_a_claim_that_gives_nothing_says_why(state: TaskState | None, expected: NotClaimedReason | None) -> None:
    assert why_not_claimed(state) is expected
    assert (state is not None and (phase_of(state, waits=False, timed_out=False), Verb.CLAIM) in TRANSITIONS) == (
        expected is None
    )
