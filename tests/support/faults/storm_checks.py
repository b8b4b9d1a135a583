"""The checker of a storm: what must be true of a whole system when all has drained, as a table of one line a check.

What must be there follows from the chain, from what clients received and from what the receiver was sent, never from
what the system believes of itself.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import httpx

from tests.support.faults.history_checker import GUARANTEES
from tests.support.faults.storm_system import STORY, CheckedSystem
from tests.support.programs.storm_clients import Calls
from tests.support.waiting import wait_until
from tracelake.errors import SetupError
from tracelake_demo.check_alerts import raised
from tracelake_demo.check_rows import check_datasets
from tracelake_demo.receiver import Hook
from tracelake_demo.system import Running
from tracelake_devchain.chain import Chain

FOREIGN = "ranges tile the requested range, without hole or overlap"
"""It names jobs of other tests; here partitions are compared with the chain."""
FAILED = "SELECT count(*) FROM tasks WHERE status = 'Failed' AND next_retry_at IS NULL"
CALLED = """
    SELECT e.id::text FROM events e JOIN datasets d ON d.id = e.dataset_uuid
     WHERE e.origin = 'manual' AND d.producer_job_name = 'call'"""
ANSWERED = """
    SELECT count(*) FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = 'answer' AND t.status = 'Completed'"""
UNENDED = """
    SELECT count(*) FROM tasks t JOIN jobs j ON j.id = t.job_id
     WHERE j.name <> 'follow' AND (t.status IN ('Queued', 'Running') OR t.next_retry_at IS NOT NULL)"""
UNSENT = "SELECT count(*) FROM outbox WHERE status <> 'Done'"
ATTEMPTS = "SELECT outcome::text, fault::text, count(*) FROM task_attempts WHERE outcome IS NOT NULL GROUP BY 1, 2"


@dataclass(frozen=True)
class Line:
    check: str
    expected: str
    found: str

    @property
    def ok(self) -> bool:
        return self.expected == self.found


def becomes(condition: Callable[[], bool]) -> bool:
    """Whether it becomes true in time, although processes that it calls may be away."""

    def holds() -> bool:
        try:
            return condition()
        except SetupError as refused:  # it met a process on its way up: the error says whether a retry may help
            if '"retryable":true' not in refused.message.replace(" ", ""):
                raise
            return False

    with suppress(TimeoutError):
        return wait_until(holds, "the storm is over", every=0.2, ignoring=(httpx.HTTPError,))
    return False


def drained(system: CheckedSystem) -> tuple[Chain, list[Line], list[str]]:
    """The chain as it is in the end; whether everything that follows from it came to an end; and when."""
    ready = becomes(system.all_ready)
    system.devchain.mine(STORY.size)
    chain = system.devchain.chain()
    steps = {
        "processes are ready": lambda: ready,
        "the follower is at the head": lambda: _followed(system) == chain.head,
        "what is final is compacted": lambda: _ranges(system) >= STORY.compacted(chain),
        "tasks have ended, and the outbox is empty": lambda: _is_quiet(system),
        "deliveries have arrived": lambda: raised(*_about(system, chain)).all_received,
        "nothing came after that": lambda: _is_quiet(system),
    }
    began, lines, times = time.monotonic(), list[Line](), list[str]()
    for step, is_so in steps.items():
        lines.append(Line(step, "yes", "yes" if becomes(is_so) else "no"))
        times.append(f"{time.monotonic() - began:6.1f} s  after the storm: {step}")
    return chain, lines, times


@dataclass(frozen=True)
class Seen:
    """What the checks are made on."""

    system: CheckedSystem
    chain: Chain
    calls: Calls


def checked(seen: Seen, *sections: str) -> list[Line]:
    """Of all sections, or of these."""
    return [line for section in sections or SECTIONS for line in SECTIONS[section](seen)]


def attempts_by_end(system: CheckedSystem) -> dict[tuple[str, str], int]:
    """By outcome, and whose fault it was."""
    return {(outcome, fault or "nobody"): count for outcome, fault, count in system.state(ATTEMPTS)}


def wrong(lines: list[Line]) -> list[Line]:
    return [line for line in lines if not line.ok]


def table(lines: list[Line]) -> str:
    """For eyes."""
    rows = [("check", "expected", "found", "ok"), *_rows(lines)]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def _rows(lines: list[Line]) -> Iterator[tuple[str, ...]]:
    for line in lines:
        yield line.check, line.expected, line.found, "yes" if line.ok else "NO"


def _about(system: CheckedSystem, chain: Chain) -> tuple[Running, Chain, Hook, int, int]:
    """The alerts of the blocks that were followed."""
    return system.running, chain, system.hook, STORY.past, chain.head


def _followed(system: CheckedSystem) -> int | None:
    for task in system.running.tasks("evm_quickstart", job="follow", status="Running"):
        progress: dict[str, Any] = system.running.get(f"/v1/tasks/{task['id']}").json().get("progress") or {}
        return progress.get("done")
    return None


def _ranges(system: CheckedSystem) -> int:
    return len(system.running.get("/v1/datasets/recent_blocks/files").json().get("partitions", []))


def _is_quiet(system: CheckedSystem) -> bool:
    return system.state(UNENDED) == [(0,)] and system.state(UNSENT) == [(0,)]


def _datasets(seen: Seen) -> Iterator[Line]:
    for dataset in check_datasets(seen.system.running, seen.chain, STORY):
        equal = f"equal to the chain, {dataset.rows} rows, blocks {dataset.blocks}"
        yield Line(f"rows of {dataset.name}", equal, dataset.error or equal)


def _alerts(seen: Seen) -> Iterator[Line]:
    found = raised(*_about(seen.system, seen.chain))
    yield Line("large transfers of the chain without an alert", "0", str(found.missing))
    yield Line("alerts of no transfer that ever was", "0", str(len(found.false)))
    yield Line("rows of alert_events, different alerts", str(found.keys), str(found.rows))
    yield Line("alerts due, alerts delivered", str(found.critical), str(found.delivered))
    yield Line("alerts delivered under two ids", "0", str(found.doubled))
    yield Line("deliveries with a wrong signature", "0", str(seen.system.hook.refused))


def _calls(seen: Seen) -> Iterator[Line]:
    calls = seen.calls
    accepted = Counter(event for events in calls.events.values() for event in events)
    stored = Counter(row[0] for row in seen.system.state(CALLED))
    ((answered,),) = seen.system.state(ANSWERED)
    yield Line("calls given up by their clients", "0", str(calls.given_up))
    yield Line("triggers accepted in the end", str(calls.triggers), str(len(calls.events)))
    yield Line("queries answered in the end", str(calls.queries), str(calls.answered))
    yield Line("answers neither accepted nor clearly refused", "0", str(len(calls.unclear)))
    yield Line("accepted triggers with exactly one event", str(accepted.total()), str((accepted & stored).total()))
    yield Line("events of no accepted trigger", "0", str((stored - accepted).total()))
    yield Line("tasks of accepted triggers completed", str(accepted.total()), str(answered))


def _tasks(seen: Seen) -> Iterator[Line]:
    ((failed,),) = seen.system.state(FAILED)
    yield Line("tasks failed for good", "0", str(failed))
    lost = sum(count for (_, fault), count in attempts_by_end(seen.system).items() if fault == "job")
    yield Line("attempts that failed by the job's own fault", "0", str(lost))


def _history(seen: Seen) -> Iterator[Line]:
    for entry, statement in GUARANTEES.items():
        if entry != FOREIGN:
            rows = [row for row in seen.system.state(statement) if "follow" not in row]  # a source never ends
            yield Line(entry, "0 broken", f"{len(rows)} broken" + (f", such as {rows[0]}" if rows else ""))


SECTIONS: Final[Mapping[str, Callable[[Seen], Iterator[Line]]]] = {
    "datasets": _datasets,
    "alerts": _alerts,
    "calls": _calls,
    "tasks": _tasks,
    "history": _history,
}
