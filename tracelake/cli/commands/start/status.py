"""`trace status`: the state of every process, failed tasks and dead batches."""

from __future__ import annotations

import json as jsonlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from tracelake.cli import printing
from tracelake.cli.options import Home, Json, settings_of
from tracelake.wire.message import Message

if TYPE_CHECKING:
    from tracelake.lite.child import ChildStatus
    from tracelake.wire.user.dags import InFlightList, PauseList
    from tracelake.wire.user.datasets import DeadBatchList
    from tracelake.wire.user.tasks import FailedTasks

REQUIRED: Final = frozenset({"gateway", "dispatcher"})
SECONDS: Final = 5.0
"""A short timeout: the state of the processes must not wait for tasks and batches."""

A = TypeVar("A", bound=Message)


def status(home: Home = None, json: Json = False) -> None:
    """Show every process, failed tasks and dead batches. Exit code 0: all ready; 1: one is not; 3: nothing runs."""
    from tracelake.cli.process_table import process_table
    from tracelake.lite.child import ChildStatus
    from tracelake.lite.home import Home as HomeFolder
    from tracelake.lite.home import holder
    from tracelake.wire.user.dags import InFlightList, PauseList
    from tracelake.wire.user.datasets import DeadBatchList
    from tracelake.wire.user.tasks import FailedTasks

    folder = HomeFolder(settings_of(home).home)
    pid = holder(folder)
    if pid is None or not folder.status.exists():
        if json:
            printing.as_json({"running": False, "home": str(folder.root), "processes": []})
        else:
            printing.out.print(f"nothing runs in {folder.root}; `trace up` starts it", markup=False)
        sys.exit(3)
    children = [ChildStatus(**load) for load in jsonlib.loads(folder.status.read_text())["processes"]]
    failures = _answer(folder.root, children, "failed_tasks", FailedTasks)
    dead = _answer(folder.root, children, "list_dead_batches", DeadBatchList, limit=1)
    paused = _answer(folder.root, children, "list_pauses", PauseList)
    in_flight = _answer(folder.root, children, "list_in_flight", InFlightList)
    if json:
        printing.as_json(
            {
                "running": True,
                "home": str(folder.root),
                "pid": pid,
                "processes": [vars(child) for child in children],
                "failed_tasks": failures and failures.failed,
                "dead_batches": dead and dead.total,
                "in_flight": in_flight and msgspec.to_builtins(in_flight.in_flight),
                "rpc_pools": in_flight and msgspec.to_builtins(in_flight.rpc_pools),
                "jobs_running": in_flight and in_flight.jobs_running,
                "jobs_idle": in_flight and in_flight.jobs_idle,
                "catching_up": in_flight and msgspec.to_builtins(in_flight.catching_up),
                "org_limits": in_flight and msgspec.to_builtins(in_flight.org_limits),
                "paused_jobs": paused and len({(pause.dag, pause.job) for pause in paused.pauses}),
            }
        )
    else:
        printing.out.print(f"{folder.root}, held by process {pid}", markup=False)
        printing.out.print(process_table(children))
        _show_failures(failures)
        _show_dead(dead)
        _show_paused(paused)
        _show_jobs(in_flight)
        _show_catching_up(in_flight)
        _show_in_flight(in_flight)
        _show_rpc_pools(in_flight)
        _show_org_limits(in_flight)
    sys.exit(0 if all(child.state == "ready" for child in children) else 1)


def _answer(home: Path, children: Sequence[ChildStatus], call: str, kind: type[A], **query: object) -> A | None:
    """None if the Gateway or the Dispatcher does not answer."""
    from tracelake.cli.api import remote
    from tracelake.errors import TraceError

    if not {child.name for child in children if child.state == "ready"} >= REQUIRED:
        return None
    try:
        with remote(home) as gateway:
            gateway.http.timeout = SECONDS
            return gateway.call(call, kind, query=query)
    except TraceError:
        return None


def _show_failures(failures: FailedTasks | None) -> None:
    if failures is None or not failures.newest:
        return
    last = failures.newest[0]
    count = "1 task has" if failures.failed == 1 else f"{failures.failed} tasks have"
    printing.out.print(
        f"\n{count} failed permanently within a day, the last of {last.dag}.{last.job}: "
        f"`trace why {last.id}` explains why, `trace task list --status failed` lists them",
        markup=False,
    )


def _show_dead(dead: DeadBatchList | None) -> None:
    from tracelake.cli.dead_batches import REPLAY, dead_batch_table

    if dead is None or not dead.batches:
        return
    printing.out.print(f"\n{dead.total} dead batches, which the sink refused; the newest:", markup=False)
    dead_batch_table(dead.batches)
    printing.out.print(f"`trace sink dead` lists them; {REPLAY}", markup=False)


def _show_paused(paused: PauseList | None) -> None:
    if paused is None or not paused.pauses:
        return
    jobs = {(pause.dag, pause.job): pause for pause in reversed(paused.pauses)}
    count = "1 job is" if len(jobs) == 1 else f"{len(jobs)} jobs are"
    first, held = paused.pauses[0], sum(pause.held for pause in jobs.values())
    printing.out.print(
        f"\n{count} paused, and {held:,} events wait. {first.dag}.{first.job} is {first.because}; "
        "`trace job pauses` lists them",
        markup=False,
    )


def _show_jobs(found: InFlightList | None) -> None:
    if found is None or not found.jobs_running + found.jobs_idle:
        return
    printing.out.print(
        f"\nReactive jobs: {found.jobs_running} running, {found.jobs_idle} idle; `trace dag show DAG` lists them",
        markup=False,
    )


def _show_catching_up(found: InFlightList | None) -> None:
    for item in found.catching_up if found else ():
        left = f"{item.tasks:,} tasks to go" if item.tasks else "its jobs compare what they lack"
        printing.out.print(
            f"\nDAG {item.dag} is behind since its versions changed at {item.since:%Y-%m-%d %H:%M:%S}: {left}; "
            f"`trace gaps {item.dag}` lists what is missing",
            markup=False,
        )


def _show_in_flight(found: InFlightList | None) -> None:
    from tracelake.cli import render

    if found is None or not found.in_flight:
        return
    printing.out.print("\nTasks that have not ended:", markup=False)
    rows = [
        (item.operator, item.runtime, item.running, item.woken, item.waiting, item.operator_limit, item.runtime_limit)
        for item in found.in_flight
    ]
    heads = ("operator", "runtime", "running", "woken", "waiting for a slot", "limit of operator", "limit of runtime")
    render.table(heads, rows, whole=("operator",))


def _show_rpc_pools(found: InFlightList | None) -> None:
    from tracelake.cli import render

    if found is None or not found.rpc_pools:
        return
    printing.out.print("\nRequests to pools of nodes, of all workers:", markup=False)
    rows = [
        (
            pool.pool,
            pool.workers,
            pool.used,
            pool.leased,
            pool.limit,
            pool.limit_rate and f"{pool.leased_rate or 0:g}",
            pool.limit_rate and f"{pool.limit_rate:g}",
        )
        for pool in found.rpc_pools
    ]
    heads = ("pool", "workers", "under way", "leased", "limit", "calls/s leased", "limit of calls/s")
    render.table(heads, rows, whole=("pool",))


def _show_org_limits(found: InFlightList | None) -> None:
    from tracelake.cli import render

    if found is None or not found.org_limits:
        return
    printing.out.print("\nThe organisation's limits:", markup=False)
    rows = [(item.limit, item.used, item.most, item.waiting) for item in found.org_limits]
    render.table(("limit", "used", "most", "tasks that wait"), rows)
