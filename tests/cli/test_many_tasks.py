"""`trace task cancel` and `retry` of many tasks: counted first, then all of them, and no others."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from tests.support.dispatcher.job_chain import claimed, drained
from tests.support.systems.command_line import Running, Trace, fail
from tracelake.dispatcher.tasks import cancel_many

pytestmark = pytest.mark.usefixtures("known_operators")

SPANS = [(n * 10, n * 10 + 9) for n in range(5)]


@pytest.fixture
def queued(running: Running, trace: Trace, file: Path) -> list[str]:
    """Five tasks of `clean`."""
    assert trace("dag", "deploy", str(file), "--activate").code == 0
    for start, end in SPANS:
        assert trace("trigger", "shop", "fetch", "--range", f"{start}-{end}").code == 0
    running.do(drained(running.control))
    listed = trace("task", "list", "--job", "clean", "--json").json["tasks"]
    return sorted(task["id"] for task in listed)


def statuses(trace: Trace) -> list[str]:
    return sorted(task["status"] for task in trace("task", "list", "--job", "clean", "--json").json["tasks"])


def test_tasks_are_counted_and_nothing_is_done_without_yes(queued: list[str], trace: Trace) -> None:
    refused = trace("task", "cancel", "--job", "clean")
    assert refused.code == 1
    assert "This would cancel 5 tasks." in refused.err
    assert statuses(trace) == ["Queued"] * 5
    assert queued


def test_all_tasks_of_a_job_are_canceled_in_batches(
    queued: list[str],
    running: Running,
    trace: Trace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cancel_many, "BATCH", 2)
    running.do(claimed(running.control, UUID(queued[0])))
    done = trace("task", "cancel", "--dag", "shop", "--reason", "enough", "--yes", "--json")
    assert (done.code, done.json) == (0, {"changed": 5})
    assert statuses(trace) == ["Canceled"] * 5
    assert "enough" in trace("task", "show", queued[0]).out
    ended = running.do(running.control.pool.fetchval("SELECT outcome::text FROM task_attempts"))
    assert ended == "Canceled", "the attempt that ran has ended"
    assert "no such task" in trace("task", "cancel", "--dag", "shop").out


def test_tasks_in_a_state_are_canceled_and_no_others(
    queued: list[str],
    running: Running,
    trace: Trace,
) -> None:
    running.do(claimed(running.control, UUID(queued[0])))
    assert trace("task", "cancel", "--status", "Queued", "--yes").code == 0
    assert statuses(trace) == ["Canceled"] * 4 + ["Running"]


def test_all_failed_tasks_of_a_job_are_retried(
    queued: list[str],
    running: Running,
    trace: Trace,
) -> None:
    for task in queued[:3]:
        running.do(fail(running.control, UUID(task)))
    assert statuses(trace) == ["Failed"] * 3 + ["Queued"] * 2
    done = trace("task", "retry", "--job", "clean", "--yes", "--json")
    assert done.json == {"changed": 3}
    assert statuses(trace) == ["Queued"] * 5
    wake_ups = "SELECT count(*) FROM outbox WHERE kind = 'enqueue_task' AND status = 'Pending'"
    assert running.do(running.control.pool.fetchval(wake_ups)) == 3


@pytest.mark.parametrize("verb", ["cancel", "retry"])
def test_every_task_of_an_organisation_is_refused(queued: list[str], trace: Trace, verb: str) -> None:
    refused = trace("task", verb, "--yes", "--json")
    assert refused.code == 1
    assert refused.json["error"]["hint"] == "name a DAG, a job or a state: --dag, --job, --status"
    assert trace("task", verb, queued[0], "--dag", "shop").code == 1
    assert statuses(trace) == ["Queued"] * 5
