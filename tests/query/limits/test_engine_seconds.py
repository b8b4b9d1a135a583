"""For how long the queries of one organisation may run in a minute."""

from __future__ import annotations

from uuid import uuid4

import pytest

from tracelake.errors import Busy
from tracelake.query.limits.engine_seconds import EngineSeconds
from tracelake.runtime.listeners import refusal_response


def test_an_organisation_that_used_up_its_time_is_refused_until_it_has_some_again() -> None:
    now = [1000.0]
    seconds, ours, theirs = EngineSeconds(30, lambda: now[0]), uuid4(), uuid4()
    seconds.charge(ours, 29)
    seconds.check(ours)  # it has a second left
    seconds.charge(ours, 6)
    with pytest.raises(Busy) as refused:
        seconds.check(ours)
    answer = refusal_response(refused.value)
    assert (answer.status_code, answer.headers["retry-after"], refused.value.retryable) == (429, "10", True)
    seconds.check(theirs)
    now[0] += 9
    with pytest.raises(Busy):
        seconds.check(ours)
    now[0] += 2
    seconds.check(ours)


def test_time_that_was_not_used_is_kept_for_a_minute_only() -> None:
    now = [0.0]
    seconds, org = EngineSeconds(30, lambda: now[0]), uuid4()
    seconds.charge(org, 1)
    now[0] += 3600
    seconds.check(org)
    assert not seconds._accounts
    seconds.charge(org, 31)
    with pytest.raises(Busy):
        seconds.check(org)


def test_without_a_limit_nothing_is_counted() -> None:
    seconds, org = EngineSeconds(0), uuid4()
    seconds.charge(org, 10**9)
    seconds.check(org)
