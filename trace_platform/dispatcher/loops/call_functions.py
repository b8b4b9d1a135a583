"""Tasks of `runtime: lambda`: claimed here, then handed to a function with all that it needs; no queue in between.

The claim comes first, so what is invoked is leased, and a Dispatcher that dies leaves a lease that runs out. While a
function runs, its lease is kept from here (it may keep it itself as well), and when the attempt is over for any reason,
the call is given up, which ends the function where its host can do that. What a function reports itself is what counts;
one that fails, or returns without a report, has its attempt failed at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final
from uuid import UUID

import msgspec
import structlog

from trace_platform.capability.claims import Claims, decode
from trace_platform.capability.jws import take_apart
from trace_platform.capability.subject import task_fields
from trace_platform.contracts import (
    Claimed,
    ClaimRequest,
    CompleteRequest,
    HeartbeatAnswer,
    HeartbeatRequest,
    Invocation,
)
from trace_platform.crash_points import crash_point
from trace_platform.dispatcher.bell import Bell
from trace_platform.dispatcher.claim_task import claim_tasks
from trace_platform.dispatcher.complete_task import Completer
from trace_platform.dispatcher.control import Control
from trace_platform.dispatcher.renew_lease import Beat, renew_leases
from trace_platform.dispatcher.replicas import host_of, is_alive
from trace_platform.errors import BadInput, Refused, Unavailable
from trace_platform.observe.logs import speaking_of
from trace_platform.observe.tracing import span
from trace_platform.ports import Invoked, Invoker
from trace_platform.store.db import OUTAGES
from trace_platform.store.queries import queries

log = structlog.get_logger()

RENEW_SECONDS: Final = 5.0
"""How often the leases of what runs are kept, all in one statement: an attempt that is over is ended within it."""
AWAY_SECONDS: Final = (0.5, 10.0)
"""How long to wait after nobody was there to run a function, from the first time to the longest."""
PROBE_SECONDS: Final = 3.0
"""Nobody there is said sooner than this: a function that has run for so long has somebody who runs it."""
AGAIN_SECONDS: Final = 1.0
ENDLESS_SECONDS: Final = 24 * 3600.0
"""For a task without a time limit of its own."""
WORKER: Final = "function of"
SILENT: Final = "the function returned without completing its task"


@dataclass
class Call:
    """A function that runs."""

    claimed: Claimed
    claims: Claims
    work: asyncio.Task[None] | None = None


@dataclass
class CallFunctions:
    control: Control
    invoker: Invoker
    most: int
    """Functions at once. The others wait in line, not claimed yet: no lease runs out while one waits."""
    bell: Bell = field(default_factory=Bell)
    _line: dict[UUID, int] = field(default_factory=dict)
    """Tasks in the order in which they came, with the promise that each is."""
    _calls: dict[UUID, Call] = field(default_factory=dict)
    _renewed: float = 0.0
    _away: float = 0.0
    _wait: float = AWAY_SECONDS[0]
    _probing: float | None = None
    """Since when one runs alone, to see whether somebody is there again."""

    def line_up(self, tasks: Mapping[UUID, int]) -> None:
        """Their promises are kept when they are claimed. A promise that waits long is taken again, and is in line."""
        self._line.update({task: promise for task, promise in tasks.items() if task not in self._calls})
        self.bell.ring()

    async def put_back_orphans(self) -> int:
        """At the start: functions that a process of this machine called which is no more. With it went its calls, and
        with those the functions; nobody need wait for their leases to run out.
        """
        host = host_of(self.control.replica)
        found = await self.control.pool.fetch(queries("lifecycle")["functions_of"], f"{WORKER} {host}:")
        delay = timedelta(seconds=self._wait)
        count = 0
        for row in found:
            if not is_alive(row["worker_id"]):
                args = row["id"], row["attempt"], row["lease_token"], "the Dispatcher that waited for it died", delay
                count += int(await self.control.pool.fetchval(queries("lifecycle")["put_back"], *args))
        return count

    async def once(self) -> int:
        await self._renew()
        if self._probing is not None and time.monotonic() - self._probing >= PROBE_SECONDS:
            self._somebody_there()
        return await self._begin()

    async def next_due(self) -> float | None:
        now = time.monotonic()
        due = [self._renewed + RENEW_SECONDS] if self._calls else []
        due += [self._away] if self._line and self._away > now else []
        due += [self._probing + PROBE_SECONDS] if self._probing is not None else []
        return max(0.001, min(due) - now) if due else None

    async def stop(self) -> None:
        """What runs is ended and put back: another replica goes on at once, instead of when the leases run out."""
        calls = list(self._calls.values())
        for call in calls:
            await _ended(call)
        for call in calls:
            await self._put_back(call.claimed, "the Dispatcher that waited for it was stopped")

    async def _begin(self) -> int:
        """Claims as many as there is room for; after nobody was there, one, to see whether somebody is."""
        if not self._line or self._away > time.monotonic():
            return 0
        room = max(0, self.most - len(self._calls))
        tasks = list(self._line)[: room if not self._away else min(room, 1 if self._probing is None else 0)]
        if not tasks:
            return 0
        self._probing = time.monotonic() if self._away else None
        worker = f"{WORKER} {self.control.replica}"
        answers = await claim_tasks(self.control, [ClaimRequest(task_id=task, worker_id=worker) for task in tasks])
        crash_point("call_functions.claimed")
        for claimed in answers:
            if isinstance(claimed, Claimed):
                self._call(claimed)
        promises = [self._line.pop(task) for task in tasks]
        await self.control.hot.execute(queries("outbox")["keep_promises"], promises, self.control.replica)
        crash_point("call_functions.marked")
        return len(tasks)

    def _call(self, claimed: Claimed) -> None:
        call = Call(claimed, decode(take_apart(claimed.capability_token).payload))
        self._calls[claimed.task.task_id] = call
        call.work = asyncio.create_task(self._run(call))

    async def _run(self, call: Call) -> None:
        claimed, subject = call.claimed, task_fields(call.claimed)
        try:
            with speaking_of(**subject), span("invoke", **subject):
                seconds = claimed.task.timeout_seconds or ENDLESS_SECONDS
                ended = await self._invoke(invocation(claimed), float(seconds))
                crash_point("call_functions.returned")
                await self._settle(call, ended)
        finally:
            self._calls.pop(claimed.task.task_id, None)
            self.bell.ring()

    async def _invoke(self, payload: bytes, seconds: float) -> Invoked:
        try:
            return await self.invoker.invoke(payload, timeout_seconds=seconds)
        except Exception as wrong:
            log.exception("a function could not be invoked")
            return Invoked(error=f"{type(wrong).__name__}: {wrong}")

    async def _settle(self, call: Call, ended: Invoked) -> None:
        """Again and again until the database has heard it."""
        while True:
            try:
                await self._settle_once(call, ended)
            except (*OUTAGES, Unavailable) as away:
                log.warning("the end of a function is not stored yet", because=str(away) or type(away).__name__)
                await asyncio.sleep(AGAIN_SECONDS)
            else:
                return

    async def _settle_once(self, call: Call, ended: Invoked) -> None:
        self._probing = None
        if not ended.started:
            self._nobody_there(ended.error or "no reason was given")
            await self._put_back(call.claimed, f"nothing has run: {ended.error}")
            return
        self._somebody_there()
        claimed = call.claimed
        sql = queries("claim")["status_of_attempt"]
        args = claimed.task.task_id, claimed.attempt, claimed.lease_token
        if await self.control.hot.fetchval(sql, *args) == "Running":
            await self._fail(call, ended.error or SILENT)

    async def _fail(self, call: Call, error: str) -> None:
        claimed = call.claimed
        request = CompleteRequest(
            task_id=claimed.task.task_id,
            attempt=claimed.attempt,
            lease_token=claimed.lease_token,
            status="Failed",
            error_message=error[:20_000],
        )
        try:
            await Completer(self.control)(request, call.claims)
        except (BadInput, Refused) as over:  # it has reported in this very moment, or lost its lease
            log.info("its end was told before", because=over.message)
        else:
            log.warning("a function failed", because=error[:500])

    async def _put_back(self, claimed: Claimed, error: str) -> None:
        """The attempt does not count: nothing has run, or we ended it ourselves."""
        delay = timedelta(seconds=self._wait)
        args = claimed.task.task_id, claimed.attempt, claimed.lease_token, error[:20_000], delay
        if await self.control.hot.fetchval(queries("lifecycle")["put_back"], *args):
            self.control.leases.due_in(self._wait)

    def _nobody_there(self, error: str) -> None:
        log.warning("nobody runs functions", because=error, again_in_seconds=self._wait)
        self._away = time.monotonic() + self._wait
        self._wait = min(2 * self._wait, AWAY_SECONDS[1])

    def _somebody_there(self) -> None:
        self._away, self._wait, self._probing = 0.0, AWAY_SECONDS[0], None

    async def _renew(self) -> None:
        """Keeps the leases of what runs. Whose attempt is over, for whatever reason, is called off."""
        now = time.monotonic()
        if not self._calls or now - self._renewed < RENEW_SECONDS:
            return
        self._renewed = now
        calls = list(self._calls.values())
        for call, answer in zip(calls, await renew_leases(self.control, [_beat(call) for call in calls]), strict=True):
            if not isinstance(answer, HeartbeatAnswer) or answer.canceled:
                log.info("a function is called off", **task_fields(call.claimed))
                if call.work is not None:
                    call.work.cancel()


def invocation(claimed: Claimed) -> bytes:
    """What a function is handed: the task as a fetch shows it, and what fences it (S4)."""
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


def _beat(call: Call) -> Beat:
    claimed = call.claimed
    request = HeartbeatRequest(task_id=claimed.task.task_id, attempt=claimed.attempt, lease_token=claimed.lease_token)
    return Beat(request, call.claims)


async def _ended(call: Call) -> None:
    if call.work is not None:
        call.work.cancel()
        await asyncio.wait({call.work})
