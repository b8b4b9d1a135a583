"""`trace delivery`: sends alerts to the addresses that users chose. No other process calls out to those."""

from __future__ import annotations

from datetime import timedelta

from tracelake.delivery.listen import listening
from tracelake.delivery.post import Sender
from tracelake.delivery.prune_items import pruning
from tracelake.delivery.routes import delivery_api
from tracelake.delivery.send_alerts import AlertSender
from tracelake.delivery.targets import Targets
from tracelake.runtime.listeners import Listener, open_listeners
from tracelake.runtime.process import Process, until_answers
from tracelake.store.db import answers, open_pool, required
from tracelake.wire.client import dispatcher_client


async def main(process: Process) -> None:
    settings, told = process.settings, process.settings.delivery
    dsn = required(settings.data.delivery_dsn, "data.delivery_dsn")
    sender = Sender(told.answer_bytes)
    try:
        async with open_pool(dsn, name="delivery", max_size=8) as pool, dispatcher_client(settings) as dispatcher:
            app = delivery_api(pool, dispatcher, settings.identity, process.metrics)
            service = Listener("delivery_internal", told.host, told.internal_port, app)
            courier = AlertSender(pool, Targets(dispatcher, told.target_seconds), sender, told, process.metrics)
            async with open_listeners([service], settings.tls, metrics=process.metrics, limits=settings.http) as at:
                await until_answers(process, "data Postgres", lambda: answers(pool))
                await until_answers(process, "the Dispatcher", dispatcher.ready)
                process.ready(f"data Postgres and the Dispatcher answer; open at {at['delivery_internal']}")
                async with listening(pool, courier.wake), pruning(pool, timedelta(days=told.kept_days)):
                    await courier.deliver(process.stop)
    finally:
        await sender.close()
