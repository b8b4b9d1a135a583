"""Deliveries with real Postgres, the Dispatcher's own API, and a receiver that listens on loopback."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from uuid import UUID, uuid4

import asyncpg
import httpx

from tests.support.identity.service_tokens import AsGateway, as_service
from tests.support.systems.gateway import System, over, system
from tests.support.waiting import SECONDS, until
from tracelake.data.delivery_items import Item, store_items
from tracelake.delivery.check_address import Resolve
from tracelake.delivery.post import Sender
from tracelake.delivery.routes import delivery_api
from tracelake.delivery.send_alerts import AlertSender
from tracelake.delivery.targets import Targets
from tracelake.dispatcher.http.internal_routes import internal_api
from tracelake.domain.ids import OrgId, delivery_id
from tracelake.gateway.process import public_api
from tracelake.runtime.metrics import Metrics
from tracelake.settings import DeliverySettings
from tracelake.store.db import open_pool
from tracelake.wire.client import DispatcherClient

SECRET = "the secret of the channel"
WRITER, READER, RIVAL = "acme|writer", "acme|reader", "rival|writer"
SETTINGS = DeliverySettings(
    allow="127.0.0.0/8", backoff_seconds=0.02, backoff_max_seconds=0.1, target_seconds=0, beat_seconds=3600
)


@dataclass(frozen=True)
class Got:
    """A request as the receiver had it."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["x-trace-delivery"]

    @property
    def key(self) -> str:
        return str(json.loads(self.body)["event"]["dedupe_key"])


@dataclass
class Receiver:
    """Answers by `answers`, one after the other; when there is none left, with 200."""

    answers: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    got: list[Got] = field(default_factory=list)
    hold: threading.Event | None = None
    """Set one, and requests wait for it."""
    held_path: str = ""

    def __enter__(self) -> Self:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if len(body) < int(self.headers["content-length"]):
                    return  # whoever sent it died in the midst of it
                headers = {name.lower(): value for name, value in self.headers.items()}
                receiver.got.append(Got(self.path, headers, body))
                if receiver.hold is not None and self.path == receiver.held_path:
                    receiver.hold.wait(SECONDS)
                status, more = receiver.answers.pop(0) if receiver.answers else (200, {})
                self.send_response(status)
                for name, value in {"content-length": "0", **more}.items():
                    self.send_header(name, value)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.hold is not None:
            self.hold.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def url(self, path: str = "/hook") -> str:
        return f"http://127.0.0.1:{self.port}{path}"


@dataclass(frozen=True)
class DeliverySystem:
    gateway_system: System
    gateway: httpx.AsyncClient
    pool: asyncpg.Pool
    data_dsn: str
    receiver: Receiver
    metrics: Metrics

    async def got(self, user: str, method: str, path: str, **more: Any) -> Any:
        answer = await self.ask(user, method, path, **more)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def ask(self, user: str, method: str, path: str, **more: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.gateway_system.token(user)}"}
        return await self.gateway.request(method, path, headers=headers, **more)

    async def channel(self, name: str = "ops", url: str | None = None, user: str = WRITER) -> None:
        body = {"name": name, "url": url or self.receiver.url(), "secret": SECRET}
        await self.got(user, "POST", "/v1/alerts/channels", json=body)

    async def alert(self, name: str = "whales", user: str = WRITER, **more: Any) -> UUID:
        body = {"name": name, "severity": "critical", "channels": ["ops"], **more}
        return UUID((await self.got(user, "POST", "/v1/alerts/definitions", json=body))["alert_definition_id"])

    async def org(self, user: str = WRITER) -> UUID:
        found: UUID = await self.gateway_system.control.pool.fetchval(
            "SELECT org_id FROM users WHERE external_id = $1", user
        )
        return found

    async def items(
        self, alert: UUID, keys: Sequence[str], *, channel: str = "ops", user: str = WRITER, age: float = 0.0
    ) -> int:
        """As `alert_route` makes them; how many were new."""
        org, at = await self.org(user), datetime.now(UTC) - timedelta(seconds=age)
        made = [
            Item(
                delivery_id(OrgId(org), alert, key, channel),
                alert,
                "whales",
                key,
                channel,
                "critical",
                at,
                json.dumps({"dedupe_key": key, "block_number": 7}),
            )
            for key in keys
        ]
        return await asyncio.to_thread(store_items, self.data_dsn, org, uuid4(), made)

    def alert_sender(
        self, settings: DeliverySettings = SETTINGS, resolve: Resolve | None = None, sender: Sender | None = None
    ) -> AlertSender:
        targets = Targets(DispatcherClient(self.gateway_system.inside), settings.target_seconds)
        return AlertSender(self.pool, targets, sender or Sender(settings.answer_bytes), settings, self.metrics, resolve)

    @asynccontextmanager
    async def delivering(self, alert_sender: AlertSender | None = None) -> AsyncIterator[AlertSender]:
        alert_sender, stop = alert_sender or self.alert_sender(), asyncio.Event()
        task = asyncio.create_task(alert_sender.deliver(stop))
        try:
            yield alert_sender
        finally:
            stop.set()
            await task
            await alert_sender.sender.close()

    async def states(self) -> dict[str, tuple[str, int, str | None]]:
        rows = await self.pool.fetch("SELECT dedupe_key, status::text, attempts, last_error FROM alerts.deliveries")
        return {row["dedupe_key"]: (row["status"], row["attempts"], row["last_error"]) for row in rows}

    async def settled(self) -> dict[str, tuple[str, int, str | None]]:
        """When nothing is to be sent any more: status, attempts and last error of each item by its key."""
        none = "SELECT NOT EXISTS (SELECT FROM alerts.deliveries WHERE status = 'Pending')"
        await until(lambda: self.pool.fetchval(none), "no delivery is pending")
        return await self.states()


@asynccontextmanager
async def delivery_system(
    state_db: str, queue_db: str, data_db: str, folder: Path, receiver: Receiver
) -> AsyncIterator[DeliverySystem]:
    metrics = Metrics()
    async with (
        system(state_db, queue_db, folder) as made,
        open_pool(data_db, name="test", max_size=8) as pool,
        over(internal_api(made.control), as_service("delivery")) as inside,
        over(delivery_api(pool, DispatcherClient(inside), metrics), auth=AsGateway("delivery")) as delivery,
        over(public_api(DispatcherClient(made.inside), made.identity, delivery=delivery)) as gateway,
    ):
        yield DeliverySystem(made, gateway, pool, data_db, receiver, metrics)


def now() -> int:
    return int(time.time())
