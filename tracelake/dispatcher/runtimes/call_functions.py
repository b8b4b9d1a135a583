"""Tasks of functions and job runs: claimed here, and passed on with all that they need; no queue in between.

The claim comes first, so what is invoked is leased, and a Dispatcher that dies leaves a lease that runs out. While a
function runs, its lease is kept from here (it may keep it itself as well), and when the attempt is over for any reason,
the call is given up, which ends the function where its host can do that. What a function reports itself is what counts;
one that fails, or returns without a report, has its attempt failed at once.

A job run (EMR Serverless) is called in the same way, but keeps its lease itself once it has begun: a Dispatcher that
stops leaves it running, and nobody waits for it any more.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal, Protocol, cast
from uuid import UUID

import msgspec
import structlog

from tracelake.capability.claims import Claims, decode
from tracelake.capability.jws import parse_token
from tracelake.capability.log_context import task_fields
from tracelake.dispatcher.replicas import host_of, is_alive
from tracelake.dispatcher.signal import Signal
from tracelake.dispatcher.tasks.claim import Claimer
from tracelake.dispatcher.tasks.completion.complete import Completer
from tracelake.dispatcher.tasks.completion.report_failure import FailedAttempt, report_final_failure
from tracelake.dispatcher.tasks.renew_lease import Beat, Renewer
from tracelake.domain.flow.pressure import Priority
from tracelake.domain.flow.tiers import TierShares
from tracelake.domain.task import TaskState
from tracelake.errors import BadInput, Refused, Unavailable
from tracelake.ports import Invoked, Invoker, Places
from tracelake.runtime.crash_points import crash_point
from tracelake.runtime.logs import log_fields
from tracelake.runtime.retry import retry_with_backoff
from tracelake.runtime.tracing import span
from tracelake.settings import RuntimeSettings
from tracelake.store.db import OUTAGES
from tracelake.store.queries import Row, fetch_column, fetch_rows, find_row, queries
from tracelake.store.tasks import status_of
from tracelake.wire.task.lifecycle import Claimed, ClaimRequest, HeartbeatAnswer, HeartbeatRequest, Invocation
from tracelake.wire.task.outputs import CompleteRequest

log = structlog.get_logger()

RENEW_SECONDS: Final = 5.0
"""How often the leases of what runs are kept, all in one statement: an attempt that is over is ended within it."""
AWAY_SECONDS: Final = (0.5, 10.0)
"""How long to wait when no runner was available: the first time, and at most."""
PROBE_SECONDS: Final = 3.0
"""A missing runner is noticed sooner than this: a function that has run for so long has one."""
PLACES_SECONDS: Final = 5.0
"""How long the number of places is cached."""
ENDLESS_SECONDS: Final = 24 * 3600.0
"""For a task without a time limit of its own."""
ANY_NUMBER: Final = 2**31 - 1
WORKERS: Final = {"function": "function of", "job_run": "job run of"}
"""What the caller is called in the tasks that it has claimed."""
SILENT: Final = "it ended without completing its task"
CallKind = Literal["function", "job_run"]


class JobRunner(Invoker, Protocol):
    """Runs a task as a job of its own, which goes on without its caller: it keeps its lease and reports its end itself.

    A call watches the job and returns when it has ended; one that is canceled ends the job.
    """

    def leave(self) -> None:
        """Calls that are canceled from now on leave their jobs alone."""
        ...


class CalledFunction(Row, frozen=True):
    id: UUID
    attempt: int
    lease_token: UUID
    worker_id: str


@dataclass
class RunningFunction:
    """A function that runs."""

    claimed: Claimed
    claims: Claims
    work: asyncio.Task[None] | None = None


@dataclass(frozen=True)
class NoRoom:
    """There was no room for a call: until when the next one waits, and how long that is."""

    until: float
    seconds: float


@dataclass
class CallFunctions:
    runtimes: Mapping[str, RuntimeSettings]
    claimer: Claimer
    renewer: Renewer
    completer: Completer
    invoker: Invoker
    most: int
    """Calls of this replica at once, and never more of all replicas than the runner has places. The other tasks
    wait in the database, not claimed yet: no lease runs out while one waits, and organisations take turns."""
    shares: TierShares
    """How the priorities share the places."""
    kind: CallKind = "function"
    """The invoker of its runtimes."""
    signal: Signal = field(default_factory=Signal)
    _places: Places | None = None
    _places_until: float = 0.0
    _refused: dict[UUID, NoRoom] = field(default_factory=dict)
    """Organisations for whose call there was no room a moment ago."""
    _calls: dict[UUID, RunningFunction] = field(default_factory=dict)
    _bulk: set[UUID] = field(default_factory=set)
    """Those of `bulk` priority, and perhaps some that have ended."""
    _renewed: float = 0.0
    _away: float = 0.0
    _wait: float = AWAY_SECONDS[0]
    _probing: float | None = None
    """Since when one call runs alone, to see whether a runner is available again."""

    async def put_back_orphans(self) -> int:
        """At the start: functions that a process of this machine called which is no more. With it went its calls, and
        with those the functions; their leases need not expire first.
        """
        if self.kind == "job_run":
            return 0  # their jobs go on
        caller = f"{WORKERS[self.kind]} {host_of(self.completer.options.replica)}:"
        count = 0
        for called in await fetch_rows(self.claimer.pool, queries("functions")["functions_of"], CalledFunction, caller):
            if not is_alive(called.worker_id):
                fence = called.id, called.attempt, called.lease_token
                count += await put_back(self.completer, fence, "the Dispatcher that waited for it died")
        return count

    async def once(self) -> int:
        await self._renew()
        if self._probing is not None and time.monotonic() - self._probing >= PROBE_SECONDS:
            self._runner_available()
        return await self._begin()

    async def next_due(self) -> float | None:
        now = time.monotonic()
        due = [self._renewed + RENEW_SECONDS] if self._calls else []
        due += [self._away] if self._away > now else []
        due += [self._probing + PROBE_SECONDS] if self._probing is not None else []
        due += [no_room.until for no_room in self._refused.values() if no_room.until > now]
        return max(0.001, min(due) - now) if due else None

    async def stop(self) -> None:
        """Ends what runs and puts it back: another replica continues at once, instead of when the leases expire.

        Job runs are left alone.
        """
        calls = list(self._calls.values())
        if self.kind == "job_run":
            cast("JobRunner", self.invoker).leave()
        for call in calls:
            await _ended(call)
        if self.kind == "job_run":
            return
        for call in calls:
            await self._put_back(call.claimed, "the Dispatcher that waited for it was stopped")

    async def _begin(self) -> int:
        """Claims as many as there is room for; after no runner was available, one, as a probe."""
        room = self.most - len(self._calls)
        if self._away:
            room = min(room, 1 if self._probing is None else 0)
        if room <= 0 or self._away > time.monotonic() or not await self._learn_places():
            return 0
        tasks = await self._next(room)
        if not tasks:
            return 0
        self._probing = time.monotonic() if self._away else None
        worker = f"{WORKERS[self.kind]} {self.completer.options.replica}"
        answers = await self.claimer.claim([ClaimRequest(task_id=task, worker_id=worker) for task in tasks])
        crash_point("call_functions.claimed")
        claimed = [answer for answer in answers if isinstance(answer, Claimed)]
        for answer in claimed:
            self._call(answer)
        return len(claimed)

    async def _next(self, room: int) -> list[UUID]:
        now = time.monotonic()
        places = self._places or Places(ANY_NUMBER, ANY_NUMBER)
        waiting = [org for org, no_room in self._refused.items() if no_room.until > now]
        # A function that has reported its end may hold its place for a moment longer.
        room = max(0, min(room, places.total - len(self._calls)))
        return await self._next_by_tier(room, places, waiting) if room else []

    async def _next_by_tier(self, room: int, places: Places, waiting: list[UUID]) -> list[UUID]:
        sql, chosen = queries("functions")["next_functions"], dict[Priority, list[UUID]]()
        self.shares.slots = min(self.most, places.total)
        self._bulk &= self._calls.keys()
        wanted = self.shares.want(room, len(self._bulk))
        for tier, most in wanted:
            tasks = [task for tasks in chosen.values() for task in tasks]
            limits = places.total, places.per_org, min(most, room - len(tasks))
            asked = self._runtimes(), *limits, waiting, str(tier), tasks
            chosen[tier] = await fetch_column(self.completer.database, sql, *asked)
        normal, bulk = (chosen.get(tier, []) for tier in Priority)
        self.shares.took(wanted, len(normal), len(bulk))
        self._bulk.update(bulk)
        return [*normal, *bulk]

    async def _learn_places(self) -> bool:
        """Whether the number of places is known. The runner is not called while nothing waits."""
        if self._places_until > time.monotonic():
            return True
        if not await self.completer.database.fetchval(queries("functions")["functions_wait"], self._runtimes()):
            return False
        try:
            self._places = await self.invoker.places()
        except Unavailable as away:
            self._runner_missing(away.message)
            return False
        self._places_until = time.monotonic() + PLACES_SECONDS
        return True

    def _runtimes(self) -> list[str]:
        return [name for name, runtime in self.runtimes.items() if runtime.invoker == self.kind]

    def _call(self, claimed: Claimed) -> None:
        call = RunningFunction(claimed, decode(parse_token(claimed.capability_token).payload))
        self._calls[claimed.task.task_id] = call
        call.work = asyncio.create_task(self._run(call))

    async def _run(self, call: RunningFunction) -> None:
        claimed, subject = call.claimed, task_fields(call.claimed)
        try:
            with log_fields(**subject), span("invoke", **subject):
                seconds = claimed.task.timeout_seconds or ENDLESS_SECONDS
                ended = await self._invoke(call, float(seconds))
                crash_point("call_functions.returned")
                await self._settle(call, ended)
        finally:
            self._calls.pop(claimed.task.task_id, None)
            self.signal.notify()

    async def _invoke(self, call: RunningFunction, seconds: float) -> Invoked:
        try:
            payload = invocation(call.claimed)
            return await self.invoker.invoke(payload, org=call.claims.org_id, timeout_seconds=seconds)
        except Exception as wrong:
            log.exception("a function could not be invoked")
            return Invoked(error=f"{type(wrong).__name__}: {wrong}", lost=True)

    async def _settle(self, call: RunningFunction, ended: Invoked) -> None:
        """Repeats until it is stored."""

        def is_away(outage: Exception) -> None:
            log.warning("the end of a function is not stored yet", because=str(outage) or type(outage).__name__)

        settle = partial(self._settle_once, call, ended)
        await retry_with_backoff(settle, outages=(*OUTAGES, Unavailable), on_outage=is_away)

    async def _settle_once(self, call: RunningFunction, ended: Invoked) -> None:
        self._probing = None
        if not ended.started and not ended.refused:
            await self._release(call, ended)
            return
        self._runner_available()
        self._refused.pop(call.claims.org_id, None)
        claimed = call.claimed
        if await status_of(self.completer.database, _beat(call).request) != TaskState.RUNNING:
            return
        if ended.lost:
            await self._put_back(claimed, ended.error or "what ran it was lost")
        else:
            await self._fail(call, ended.error or SILENT, retryable=not ended.refused)

    async def _release(self, call: RunningFunction, ended: Invoked) -> None:
        """Nothing has run: it was no attempt, and the task waits for its next turn."""
        why = ended.error or "no reason was given"
        if ended.busy:
            self._runner_available()
            self._has_no_room(call.claims.org_id)
        else:
            self._runner_missing(why)
        claimed = call.claimed
        fence = claimed.task.task_id, claimed.attempt, claimed.lease_token
        if await self.completer.database.fetchval(queries("functions")["release"], *fence):
            self.completer.announcer.after.metrics.moved(TaskState.RUNNING, TaskState.QUEUED)
            log.info("a function waits again", because=why)

    def _has_no_room(self, org: UUID) -> None:
        """Its next call waits, longer each time; those of others do not. How many places there are is asked again."""
        before = self._refused.get(org)
        seconds = min(2 * before.seconds, AWAY_SECONDS[1]) if before else AWAY_SECONDS[0]
        self._refused[org] = NoRoom(time.monotonic() + seconds, seconds)
        self._places_until = 0.0

    async def _fail(self, call: RunningFunction, error: str, *, retryable: bool) -> None:
        claimed = call.claimed
        request = CompleteRequest(
            task_id=claimed.task.task_id,
            attempt=claimed.attempt,
            lease_token=claimed.lease_token,
            status="Failed",
            error_message=error[:20_000],
            retryable=retryable,
        )
        try:
            await self.completer(request, call.claims)
        except (BadInput, Refused) as over:  # it has reported in this very moment, or lost its lease
            log.info("its end was reported before", because=over.message)
        else:
            log.warning("a function failed", because=error[:500])

    async def _put_back(self, claimed: Claimed, error: str) -> None:
        """What ran it was lost, or we ended it ourselves: the platform's fault."""
        fence = claimed.task.task_id, claimed.attempt, claimed.lease_token
        await put_back(self.completer, fence, error)

    def _runner_missing(self, error: str) -> None:
        log.warning("no runner is available for functions", because=error, again_in_seconds=self._wait)
        self._away = time.monotonic() + self._wait
        self._wait = min(2 * self._wait, AWAY_SECONDS[1])

    def _runner_available(self) -> None:
        self._away, self._wait, self._probing = 0.0, AWAY_SECONDS[0], None

    async def _renew(self) -> None:
        """Keeps the leases of what runs. Whose attempt is over, for whatever reason, is called off."""
        now = time.monotonic()
        if not self._calls or now - self._renewed < RENEW_SECONDS:
            return
        self._renewed = now
        calls = list(self._calls.values())
        for call, answer in zip(calls, await self.renewer.renew([_beat(call) for call in calls]), strict=True):
            if not isinstance(answer, HeartbeatAnswer) or answer.canceled:
                if await self._ends_itself(call):
                    continue
                log.info("a function is called off", **task_fields(call.claimed))
                if call.work is not None:
                    call.work.cancel()

    async def _ends_itself(self, call: RunningFunction) -> bool:
        """A job run that has reported its end, and is about to stop."""
        if self.kind != "job_run":
            return False
        return await status_of(self.completer.database, _beat(call).request) in {TaskState.COMPLETED, TaskState.FAILED}


async def put_back(completer: Completer, fence: Sequence[Any], error: str) -> bool:
    """The platform ended the attempt: another follows soon, later each time. False: it was not the current one.

    `fence`: task, attempt, lease token.
    """
    values = *fence, error[:20_000], AWAY_SECONDS[0], completer.options.failure_alert
    lost = await find_row(completer.database, queries("lifecycle")["put_back"], FailedAttempt, *values)
    if lost is None:
        return False
    after = completer.announcer.after
    after.leases.due_in(AWAY_SECONDS[0] / 2)  # the earliest; the loop reads the time from Postgres
    if lost.for_good:
        report_final_failure(after.metrics, lost)
        after.outbox.notify()
    return True


def invocation(claimed: Claimed) -> bytes:
    """The payload of a function: the task as a fetch shows it, and its fence (S4)."""
    task = claimed.task
    fields = {name: getattr(task, name) for name in task.__struct_fields__}
    return msgspec.json.encode(
        Invocation(
            **fields,
            lease_token=claimed.lease_token,
            lease_expires_at=claimed.lease_expires_at,
            capability_token=claimed.capability_token,
            bundle_url=task.udf.url if task.udf else None,
        )
    )


def _beat(call: RunningFunction) -> Beat:
    claimed = call.claimed
    request = HeartbeatRequest(task_id=claimed.task.task_id, attempt=claimed.attempt, lease_token=claimed.lease_token)
    return Beat(request, call.claims)


async def _ended(call: RunningFunction) -> None:
    if call.work is not None:
        call.work.cancel()
        await asyncio.wait({call.work})
