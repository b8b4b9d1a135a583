"""The command line retries a busy or slow system after the delay it is given, and says that it waits."""

from __future__ import annotations

import io
import sys
import time

import httpx
import pytest

from tracelake.cli import printing
from tracelake.cli.api import Remote
from tracelake.errors import Busy, DiskFull, ServiceUnavailable, Unavailable
from tracelake.wire.user.dags import DagList


class Gateway:
    """Answers with these refusals, one after the other, and then as it should."""

    def __init__(self, *refusals: tuple[int, Unavailable]) -> None:
        self.refusals = list(refusals)
        self.calls = 0

    def __call__(self, request: httpx.Request) -> httpx.Response:
        del request
        self.calls += 1
        if not self.refusals:
            return httpx.Response(200, json={"dags": []})
        status, refusal = self.refusals.pop(0)
        return httpx.Response(status, json={"error": refusal.as_dict()}, headers={"retry-after": "0"})

    def remote(self) -> Remote:
        return Remote(httpx.Client(transport=httpx.MockTransport(self), base_url="https://gateway"))


def test_a_call_that_was_refused_by_a_busy_server_is_repeated() -> None:
    gateway = Gateway((429, Busy("busy")), (503, Busy("busy")))
    assert gateway.remote().call("list_dags", DagList).dags == []
    assert gateway.calls == 3


def test_a_call_that_may_have_been_done_is_made_again_only_if_it_may_be_repeated() -> None:
    once, repeated = (Gateway((503, ServiceUnavailable("no answer"))) for _ in range(2))
    with pytest.raises(ServiceUnavailable, match="no answer"):
        once.remote().call("list_dags", DagList)
    repeated.remote().call("list_dags", DagList, repeatable=True)
    assert (once.calls, repeated.calls) == (1, 2)


def test_a_refusal_says_what_the_gateway_said() -> None:
    with pytest.raises(DiskFull, match="the disk of the Postgres server is full"):
        Gateway((503, DiskFull.of("the Postgres server", None))).remote().call("list_dags", DagList)


def test_a_long_wait_is_said_and_a_short_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", output := io.StringIO())
    with printing.waiting("deploying shop"):
        pass
    assert output.getvalue() == ""
    with printing.waiting("deploying shop", first=0.01):
        while "deploying shop: 0 s so far" not in output.getvalue():
            time.sleep(0.01)
