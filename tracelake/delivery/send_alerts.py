"""Sends alerts: takes what is due, asks where it goes, sends it, marks what has become of it.

At least once: who dies between a send and its mark leaves a lease that runs out, and the alert is sent again under the
same id. Never by two at once: a send is over long before its lease is.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import asyncpg
import msgspec
import structlog

from tracelake.delivery.backoff import pause_before_next
from tracelake.delivery.check_address import Resolve, find_destination
from tracelake.delivery.post import Response, Sender
from tracelake.delivery.sign import signature
from tracelake.delivery.targets import Targets
from tracelake.delivery.work_items import Item, Lane, next_due, put_off, settle, take
from tracelake.errors import DestinationRefused, TraceError, Unavailable
from tracelake.runtime.crash_points import crash_point
from tracelake.runtime.metrics import Metrics
from tracelake.settings import DeliverySettings
from tracelake.store.db import OUTAGES
from tracelake.wire.alert_messages import Target

log = structlog.get_logger()

AFTER_OUTAGE_SECONDS: Final = 1.0
SOON_SECONDS: Final = 0.5
"""Something is due and could not be taken: another process has it in hand."""


@dataclass(frozen=True)
class Outcome:
    """What has become of one attempt."""

    kind: str
    """Sent, Failed, Stale; Retry: it is tried again; Away: it was not even tried."""
    reason: str | None = None
    retry_after: float | None = None


@dataclass
class AlertSender:
    pool: asyncpg.Pool
    targets: Targets
    sender: Sender
    told: DeliverySettings
    metrics: Metrics = field(default_factory=Metrics)
    resolve: Resolve | None = None
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when there may be something to do: by a notification, or by a delivery that has ended."""
    _in_hand: Counter[Lane] = field(default_factory=Counter)

    async def deliver(self, stop: asyncio.Event) -> None:
        """Until `stop`; then nothing more is taken, and what is in hand is finished."""
        async with asyncio.TaskGroup() as group:
            while not stop.is_set():
                self.wake.clear()
                pause = await self._take(group)
                await _either(self.wake, stop, pause)

    async def _take(self, group: asyncio.TaskGroup) -> float:
        """Begin as much as there is room for; how long to wait for more if nobody wakes us."""
        room = self.told.concurrency - self._in_hand.total()
        try:
            items = await take(self.pool, room, self._in_hand, self.told) if room else ()
            crash_point("delivery.taken", when=items)
            for item in items:
                self._in_hand[item.lane] += 1
                group.create_task(self._handle(item, time.monotonic()))
            due = await next_due(self.pool)
        except OUTAGES as away:
            log.warning("data Postgres is away", because=str(away) or type(away).__name__)
            return AFTER_OUTAGE_SECONDS
        return min(self.told.beat_seconds, self.told.beat_seconds if due is None else max(due, SOON_SECONDS))

    async def _handle(self, item: Item, taken: float) -> None:
        try:
            outcome = await self.attempt(item, taken)
            await self._patiently(lambda: self._mark(item, outcome), taken)
            crash_point("delivery.marked")
            self._say(item, outcome)
        except Exception:
            log.exception("a delivery failed", delivery=str(item.id))  # its lease runs out, and it is tried again
        finally:
            self._in_hand[item.lane] -= 1
            self._in_hand += Counter()  # forgets what is at nothing
            self.wake.set()

    async def attempt(self, item: Item, taken: float) -> Outcome:
        if item.attempts > self.told.attempts:
            return Outcome(
                "Failed", f"given up: {self.told.attempts} attempts were begun, and the last was never ended"
            )
        try:
            target = await self.targets.of(item)
        except TraceError as away:
            return Outcome("Away", f"nobody can say where it goes: {away.message}")
        refusal = _not_to_be_sent(item, target)
        if refusal is not None or target is None:
            return refusal or Outcome("Failed")
        if time.monotonic() - taken > self.told.lease_seconds - self.told.timeout_seconds:
            return Outcome("Away", "too late to send it under this lease")
        return await self._send(item, target)

    async def _send(self, item: Item, target: Target) -> Outcome:
        began = time.monotonic()
        try:
            async with asyncio.timeout(self.told.timeout_seconds):
                place = await find_destination(target.url, self.told, self.resolve)
                body = body_of(item)
                crash_point("delivery.before_send")
                said = await self.sender.post(place, body, headers_of(item, target, body))
                crash_point("delivery.sent")
        except TimeoutError:
            return Outcome("Retry", f"no answer within {self.told.timeout_seconds:g} s")
        except DestinationRefused as refused:
            return Outcome("Failed", f"{refused.message}{f' ({refused.hint})' if refused.hint else ''}")
        except Unavailable as away:
            return Outcome("Retry", away.message)
        self.metrics.delivery_seconds.observe(time.monotonic() - began)
        return judged(said)

    async def _mark(self, item: Item, outcome: Outcome) -> None:
        match outcome.kind:
            case "Sent":
                await settle(self.pool, item, "Sent", None)
            case "Stale":
                await settle(self.pool, item, "Stale", outcome.reason)
            case "Away":
                await put_off(self.pool, item, AFTER_OUTAGE_SECONDS, outcome.reason, counts=False)
            case "Retry" if item.attempts < self.told.attempts:
                pause = pause_before_next(item.attempts, outcome.retry_after, self.told)
                await put_off(self.pool, item, pause, outcome.reason, counts=True)
            case _:
                await settle(self.pool, item, "Failed", outcome.reason)

    async def _patiently(self, mark: Callable[[], Awaitable[None]], taken: float) -> None:
        """Until it is heard, or the lease has run out: then somebody else has it."""
        while True:
            try:
                return await mark()
            except OUTAGES as away:
                if time.monotonic() - taken > self.told.lease_seconds:
                    raise
                log.warning("a delivery waits to be marked", because=str(away) or type(away).__name__)
                await asyncio.sleep(AFTER_OUTAGE_SECONDS)

    def _say(self, item: Item, outcome: Outcome) -> None:
        self.metrics.deliveries.labels(outcome.kind).inc()
        if outcome.kind == "Sent":
            self.metrics.delivery_lag.observe(max(0.0, item.waited_seconds))
        log.info(
            "delivery",
            outcome=outcome.kind,
            org=str(item.org_id),
            alert=item.alert_name,
            channel=item.channel,
            delivery=str(item.id),
            attempt=item.attempts,
            because=outcome.reason,
        )


def judged(said: Response) -> Outcome:
    """2xx took it; 429 and 5xx may take it later; any other answer, a redirect too, will be the same again."""
    match said.status:
        case status if 200 <= status < 300:  # noqa: PLR2004 - what HTTP calls success
            return Outcome("Sent")
        case status if status == 429 or status >= 500:  # noqa: PLR2004 - too many; its own fault
            return Outcome("Retry", f"the receiver answered {status}", said.retry_after)
        case status:
            return Outcome("Failed", f"the receiver answered {status}")


def body_of(item: Item) -> bytes:
    """The same bytes at every attempt."""
    told = {
        "delivery_id": item.id,
        "alert": {"id": item.alert_definition_id, "name": item.alert_name},
        "channel": item.channel,
        "event": msgspec.Raw(item.event.encode()),
    }
    return msgspec.json.encode(told)


def headers_of(item: Item, target: Target, body: bytes) -> dict[str, str]:
    return {
        "content-type": "application/json",
        "user-agent": "trace-delivery/1",
        "x-trace-delivery": str(item.id),
        "x-trace-signature": signature(target.secret, int(time.time()), body),
    }


def _not_to_be_sent(item: Item, target: Target | None) -> Outcome | None:
    if target is None:
        return Outcome("Failed", "the alert, or its channel, is not there any more")
    if not target.enabled:
        return Outcome("Failed", "the alert is disabled")
    if target.max_age_seconds is not None and item.age_seconds > target.max_age_seconds and not item.at_any_age:
        return Outcome("Stale", f"the event is older than {target.max_age_seconds} s")
    return None


async def _either(wake: asyncio.Event, stop: asyncio.Event, seconds: float) -> None:
    waits = {asyncio.create_task(wake.wait()), asyncio.create_task(stop.wait())}
    with suppress(TimeoutError):
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
