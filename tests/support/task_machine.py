"""The life of a task as one table, with which tests compare Postgres.

A task's `status` has five values; what may happen next also depends on how it failed. `Phase` is the finer grain:

    status      next_retry_at   timed out   phase              late replies of its attempt
    Queued      -               -           QUEUED             refused: a newer attempt is due
    Running     -               -           RUNNING            (not late)
    Completed   -               -           COMPLETED          the same again is answered as before
    Canceled    -               -           CANCELED           refused
    Failed      set             no          FAILED_WAITING     refused: the attempt has reported
    Failed      NULL            no          FAILED_FINAL       refused
    Failed      set             yes         LOST_WAITING       accepted (S10): nobody has reported yet
    Failed      NULL            yes         LOST_FINAL         accepted (S10): no newer attempt will start

A state changes only by `TRANSITIONS`; SQL repeats the from-state in its WHERE, the schema holds it by CHECK (S11). The
fence (task, attempt, lease token) comes first and is not part of this table: a stale attempt never gets here.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import assert_never

from tracelake.domain.task import TaskState
from tracelake.errors import Conflict


class Phase(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    CANCELED = "canceled"
    FAILED_WAITING = "failed_waiting"
    FAILED_FINAL = "failed_final"
    LOST_WAITING = "lost_waiting"
    LOST_FINAL = "lost_final"


class Verb(StrEnum):
    CLAIM = "claim"
    """A worker takes the lease."""
    RENEW = "renew"
    """A heartbeat; never brings a lost attempt back."""
    RELEASE = "release"
    """The claim is undone, because nothing has run under it: the same attempt waits again."""
    EMIT = "emit"
    """Events, invalidations or a buffer publish, sent before the completion."""
    COMPLETE = "complete"
    FAIL = "fail"
    """The attempt reports an error, and another will follow."""
    TIME_OUT = "time_out"
    """The lease ran out, or `timeout_seconds` did; another attempt will follow."""
    GIVE_UP = "give_up"
    """No attempt is left, or trying again cannot help. Follows FAIL or TIME_OUT, in the same transaction."""
    RETRY = "retry"
    """`next_retry_at` has come: the next attempt, with a new lease token."""
    REVIVE = "revive"
    """A person asks for one more attempt."""
    CANCEL = "cancel"


TRANSITIONS: Mapping[tuple[Phase, Verb], Phase] = MappingProxyType(
    {
        (Phase.QUEUED, Verb.CLAIM): Phase.RUNNING,
        (Phase.QUEUED, Verb.CANCEL): Phase.CANCELED,
        (Phase.RUNNING, Verb.RENEW): Phase.RUNNING,
        (Phase.RUNNING, Verb.RELEASE): Phase.QUEUED,
        (Phase.RUNNING, Verb.EMIT): Phase.RUNNING,
        (Phase.RUNNING, Verb.COMPLETE): Phase.COMPLETED,
        (Phase.RUNNING, Verb.FAIL): Phase.FAILED_WAITING,
        (Phase.RUNNING, Verb.TIME_OUT): Phase.LOST_WAITING,
        (Phase.RUNNING, Verb.CANCEL): Phase.CANCELED,
        (Phase.FAILED_WAITING, Verb.GIVE_UP): Phase.FAILED_FINAL,
        (Phase.FAILED_WAITING, Verb.RETRY): Phase.QUEUED,
        (Phase.FAILED_WAITING, Verb.REVIVE): Phase.QUEUED,
        (Phase.FAILED_WAITING, Verb.CANCEL): Phase.CANCELED,
        (Phase.FAILED_FINAL, Verb.REVIVE): Phase.QUEUED,
        (Phase.LOST_WAITING, Verb.EMIT): Phase.LOST_WAITING,
        (Phase.LOST_WAITING, Verb.COMPLETE): Phase.COMPLETED,
        (Phase.LOST_WAITING, Verb.FAIL): Phase.FAILED_WAITING,
        (Phase.LOST_WAITING, Verb.GIVE_UP): Phase.LOST_FINAL,
        (Phase.LOST_WAITING, Verb.RETRY): Phase.QUEUED,
        (Phase.LOST_WAITING, Verb.REVIVE): Phase.QUEUED,
        (Phase.LOST_WAITING, Verb.CANCEL): Phase.CANCELED,
        (Phase.LOST_FINAL, Verb.EMIT): Phase.LOST_FINAL,
        (Phase.LOST_FINAL, Verb.COMPLETE): Phase.COMPLETED,
        (Phase.LOST_FINAL, Verb.FAIL): Phase.FAILED_FINAL,
        (Phase.LOST_FINAL, Verb.REVIVE): Phase.QUEUED,
        (Phase.LOST_FINAL, Verb.CANCEL): Phase.CANCELED,
    }
)

NEW_ATTEMPT = frozenset({Verb.RETRY, Verb.REVIVE})
"""The verbs that raise `attempt` and take the old lease token away. No other verb may touch either (S10); but RELEASE
takes the token of a claim under which nothing has run."""

ENDED = frozenset({Phase.COMPLETED, Phase.CANCELED, Phase.FAILED_FINAL, Phase.LOST_FINAL})
"""Nothing more happens of its own accord."""


def after(phase: Phase, verb: Verb) -> Phase:
    """Where `verb` leads, or Conflict if it cannot happen now."""
    try:
        return TRANSITIONS[phase, verb]
    except KeyError:
        raise Conflict(f"a task that is {state_of(phase)} cannot {verb}", where=str(phase)) from None


def after_failure(phase: Phase, verb: Verb, *, attempt: int, max_attempts: int, retryable: bool = True) -> Phase:
    """Where a FAIL or TIME_OUT leads when attempts are counted: one transaction, one answer.

    Ends by the job's own fault and ends by the platform's are counted apart: both numbers are of the kind of this end.
    """
    failed = after(phase, verb)
    can_give_up = (failed, Verb.GIVE_UP) in TRANSITIONS
    return after(failed, Verb.GIVE_UP) if can_give_up and (attempt >= max_attempts or not retryable) else failed


def state_of(phase: Phase) -> TaskState:
    """The `status` column."""
    match phase:
        case Phase.QUEUED:
            return TaskState.QUEUED
        case Phase.RUNNING:
            return TaskState.RUNNING
        case Phase.COMPLETED:
            return TaskState.COMPLETED
        case Phase.CANCELED:
            return TaskState.CANCELED
        case Phase.FAILED_WAITING | Phase.FAILED_FINAL | Phase.LOST_WAITING | Phase.LOST_FINAL:
            return TaskState.FAILED
        case _:
            assert_never(phase)


def phase_of(state: TaskState, *, waits: bool, timed_out: bool) -> Phase:
    """From the columns: `waits` is `next_retry_at IS NOT NULL`."""
    match state:
        case TaskState.QUEUED:
            return Phase.QUEUED
        case TaskState.RUNNING:
            return Phase.RUNNING
        case TaskState.COMPLETED:
            return Phase.COMPLETED
        case TaskState.CANCELED:
            return Phase.CANCELED
        case TaskState.FAILED if timed_out:
            return Phase.LOST_WAITING if waits else Phase.LOST_FINAL
        case TaskState.FAILED:
            return Phase.FAILED_WAITING if waits else Phase.FAILED_FINAL
        case _:
            assert_never(state)
