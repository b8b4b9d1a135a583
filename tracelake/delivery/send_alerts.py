"""Sends alerts: takes due work items, asks the Dispatcher for their addresses, sends them and marks the outcome.

At least once: a process that dies between a send and its mark leaves a lease that expires, and the alert is sent again
under the same id. Never by two at once: a send ends long before its lease does.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import asyncpg
import msgspec
import structlog

from tracelake.delivery.backoff import pause_before_next
from tracelake.delivery.check_address import Resolve, find_destination
from tracelake.delivery.post import ReceiverResponse, Sender
from tracelake.delivery.targets import Targets
from tracelake.delivery.work_items import CHANNEL, DeliveryLane, WorkItem, next_due, put_off, settle, take
from tracelake.errors import DestinationRefused, TraceError, Unavailable
from tracelake.runtime.background import in_background
from tracelake.runtime.crash_points import crash_point
from tracelake.runtime.metrics import Metrics
from tracelake.runtime.postgres import listen, pool_connection
from tracelake.runtime.retry import BACKOFF, retry_with_backoff
from tracelake.settings import DeliverySettings
from tracelake.store.db import OUTAGES
from tracelake.wire.user.alerts import Target

log = structlog.get_logger()

SOON_SECONDS: Final = 0.5
"""Something is due and could not be taken: another process sends it."""


@dataclass(frozen=True)
class SendOutcome:
    """The outcome of one attempt."""

    kind: str
    """Sent, Failed, Stale; Retry: it is tried again; Away: it was not tried."""
    reason: str | None = None
    retry_after: float | None = None


@dataclass
class AlertSender:
    pool: asyncpg.Pool
    targets: Targets
    sender: Sender
    settings: DeliverySettings
    metrics: Metrics = field(default_factory=Metrics)
    resolve: Resolve | None = None
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when there may be something to do: by a notification, or by a delivery that has ended."""
    _in_progress: Counter[DeliveryLane] = field(default_factory=Counter)

    async def deliver(self, stop: asyncio.Event) -> None:
        """Until `stop`; then no more items are taken, and those in progress are finished."""
        notified = listen(lambda: pool_connection(self.pool), CHANNEL, lambda _: self.wake.set())
        async with in_background(notified), asyncio.TaskGroup() as group:
            while not stop.is_set():
                self.wake.clear()
                pause = await self._take(group)
                await _either(self.wake, stop, pause)

    async def _take(self, group: asyncio.TaskGroup) -> float:
        """Begins as much as there is room for. Returns how long to wait for more unless notified."""
        room = self.settings.concurrency - self._in_progress.total()
        try:
            items = await take(self.pool, room, self._in_progress, self.settings) if room else ()
            crash_point("delivery.taken", when=items)
            for item in items:
                self._in_progress[item.lane] += 1
                group.create_task(self._handle(item, time.monotonic()))
            due = await next_due(self.pool)
        except OUTAGES as away:
            log.warning("data Postgres is away", because=str(away) or type(away).__name__)
            return BACKOFF.longest_seconds
        return min(self.settings.beat_seconds, self.settings.beat_seconds if due is None else max(due, SOON_SECONDS))

    async def _handle(self, item: WorkItem, taken: float) -> None:
        try:
            outcome = await self.attempt(item, taken)
            await self._mark_with_retry(item, outcome, taken)
            crash_point("delivery.marked")
            self._say(item, outcome)
        except Exception:
            log.exception(
                "a delivery failed", org=str(item.org_id), delivery=str(item.id)
            )  # its lease runs out, and it is tried again
        finally:
            self._in_progress[item.lane] -= 1
            self._in_progress += Counter()  # drops the counts that are 0
            self.wake.set()

    async def attempt(self, item: WorkItem, taken: float) -> SendOutcome:
        if item.attempts > self.settings.attempts:
            return SendOutcome(
                "Failed", f"given up: {self.settings.attempts} attempts were begun, and the last was never ended"
            )
        try:
            target = await self.targets.of(item)
        except TraceError as away:
            return SendOutcome("Away", f"its address is not known at the moment: {away.message}")
        refusal = _not_to_be_sent(item, target)
        if refusal is not None or target is None:
            return refusal or SendOutcome("Failed")
        if time.monotonic() - taken > self.settings.lease_seconds - self.settings.timeout_seconds:
            return SendOutcome("Away", "too late to send it under this lease")
        return await self._send(item, target)

    async def _send(self, item: WorkItem, target: Target) -> SendOutcome:
        began = time.monotonic()
        try:
            async with asyncio.timeout(self.settings.timeout_seconds):
                place = await find_destination(target.url, self.settings, self.resolve)
                body = body_of(item)
                crash_point("delivery.before_send")
                response = await self.sender.post(place, body, headers_of(item, target, body))
                crash_point("delivery.sent")
        except TimeoutError:
            return SendOutcome("Retry", f"no answer within {self.settings.timeout_seconds:g} s")
        except DestinationRefused as refused:
            return SendOutcome("Failed", f"{refused.message}{f' ({refused.hint})' if refused.hint else ''}")
        except Unavailable as away:
            return SendOutcome("Retry", away.message)
        self.metrics.delivery_seconds.labels(str(item.org_id)).observe(time.monotonic() - began)
        return outcome_of(response)

    async def _mark(self, item: WorkItem, outcome: SendOutcome) -> None:
        match outcome.kind:
            case "Sent":
                await settle(self.pool, item, "Sent", None)
            case "Stale":
                await settle(self.pool, item, "Stale", outcome.reason)
            case "Away":
                await put_off(self.pool, item, BACKOFF.longest_seconds, outcome.reason, counts=False)
            case "Retry" if item.attempts < self.settings.attempts:
                pause = pause_before_next(item.attempts, outcome.retry_after, self.settings)
                await put_off(self.pool, item, pause, outcome.reason, counts=True)
            case _:
                await settle(self.pool, item, "Failed", outcome.reason)

    async def _mark_with_retry(self, item: WorkItem, outcome: SendOutcome, taken: float) -> None:
        """Until Postgres answers, or the lease has expired: then another process may have the item."""
        await retry_with_backoff(
            lambda: self._mark(item, outcome),
            is_over=lambda: time.monotonic() - taken > self.settings.lease_seconds,
            outages=OUTAGES,
        )

    def _say(self, item: WorkItem, outcome: SendOutcome) -> None:
        self.metrics.deliveries.labels(str(item.org_id), outcome.kind).inc()
        if outcome.kind == "Sent":
            self.metrics.delivery_lag.labels(str(item.org_id)).observe(max(0.0, item.waited_seconds))
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


def outcome_of(response: ReceiverResponse) -> SendOutcome:
    """2xx: sent; 429 and 5xx: a retry may help; any other answer, a redirect too, would be the same again."""
    match response.status:
        case status if 200 <= status < 300:  # noqa: PLR2004 - what HTTP calls success
            return SendOutcome("Sent")
        case status if status == 429 or status >= 500:  # noqa: PLR2004 - too many; its own fault
            return SendOutcome("Retry", f"the receiver answered {status}", response.retry_after)
        case status:
            return SendOutcome("Failed", f"the receiver answered {status}")


def body_of(item: WorkItem) -> bytes:
    """The same bytes at every attempt."""
    message = {
        "delivery_id": item.id,
        "alert": {"id": item.alert_definition_id, "name": item.alert_name},
        "channel": item.channel,
        "event": msgspec.Raw(item.event.encode()),
    }
    return msgspec.json.encode(message)


def headers_of(item: WorkItem, target: Target, body: bytes) -> dict[str, str]:
    return {
        "content-type": "application/json",
        "user-agent": "trace-delivery/1",
        "x-trace-delivery": str(item.id),
        "x-trace-signature": signature(target.secret, int(time.time()), body),
    }


def signature(secret: str, at: int, body: bytes) -> str:
    """`t=<unix seconds>,v1=<hex>`: the HMAC by SHA-256 over `<t>.<body>`, with the channel's secret."""
    digest = hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at},v1={digest}"


def _not_to_be_sent(item: WorkItem, target: Target | None) -> SendOutcome | None:
    if target is None:
        return SendOutcome("Failed", "the alert, or its channel, is not there any more")
    if not target.enabled:
        return SendOutcome("Failed", "the alert is disabled")
    if target.max_age_seconds is not None and item.age_seconds > target.max_age_seconds and not item.at_any_age:
        return SendOutcome("Stale", f"the event is older than {target.max_age_seconds} s")
    return None


async def _either(wake: asyncio.Event, stop: asyncio.Event, seconds: float) -> None:
    waits = {asyncio.create_task(wake.wait()), asyncio.create_task(stop.wait())}
    with suppress(TimeoutError):
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
