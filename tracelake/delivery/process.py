"""`trace delivery`: sends alerts to the addresses that users chose. No other process calls out to those."""

from __future__ import annotations

from datetime import timedelta

from tracelake.delivery.post import Sender
from tracelake.delivery.routes import delivery_api
from tracelake.delivery.send_alerts import AlertSender
from tracelake.delivery.targets import Targets
from tracelake.delivery.work_items import keep_pruning
from tracelake.runtime.background import in_background
from tracelake.runtime.listeners import Listener, open_listeners
from tracelake.runtime.process import Process, wait_for_service
from tracelake.store.db import answers, open_pool, required
from tracelake.wire.client import dispatcher_client


async def main(process: Process) -> None:
    settings, limits = process.settings, process.settings.delivery
    dsn = required(settings.data.delivery_dsn, "data.delivery_dsn")
    sender = Sender(limits.answer_bytes)
    try:
        async with open_pool(dsn, name="delivery", max_size=8) as pool, dispatcher_client(settings) as dispatcher:
            app = delivery_api(pool, dispatcher, process.metrics)
            service = Listener("delivery_internal", limits.host, limits.internal_port, app)
            alerts = AlertSender(pool, Targets(dispatcher, limits.target_seconds), sender, limits, process.metrics)
            async with open_listeners([service], settings.tls, metrics=process.metrics, limits=settings.http) as at:
                await wait_for_service(process, "data Postgres", lambda: answers(pool))
                await wait_for_service(process, "the Dispatcher", dispatcher.ready)
                process.ready(f"data Postgres and the Dispatcher answer; open at {at['delivery_internal']}")
                async with in_background(keep_pruning(pool, timedelta(days=limits.kept_days))):
                    await alerts.deliver(process.stop)
    finally:
        await sender.close()
