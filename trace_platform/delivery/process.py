"""`trace delivery`: sends alerts to the addresses that users chose. No other process calls out to those."""

from __future__ import annotations

from datetime import timedelta

from trace_platform.client import dispatcher_client
from trace_platform.delivery.courier import Courier
from trace_platform.delivery.listen import listening
from trace_platform.delivery.prune_items import pruning
from trace_platform.delivery.routes import delivery_door
from trace_platform.delivery.send import Sender
from trace_platform.delivery.targets import Targets
from trace_platform.doors import Door, open_doors
from trace_platform.process import Process, until_answers
from trace_platform.store.db import answers, open_pool, required


async def main(process: Process) -> None:
    settings, told = process.settings, process.settings.delivery
    dsn = required(settings.data.delivery_dsn, "data.delivery_dsn")
    sender = Sender(told.answer_bytes)
    try:
        async with open_pool(dsn, name="delivery", max_size=8) as pool, dispatcher_client(settings) as dispatcher:
            app = delivery_door(pool, dispatcher, settings.identity, process.metrics)
            door = Door("delivery_internal", told.host, told.internal_port, app)
            courier = Courier(pool, Targets(dispatcher, told.target_seconds), sender, told, process.metrics)
            async with open_doors([door], settings.tls, metrics=process.metrics, limits=settings.http) as at:
                await until_answers(process, "data Postgres", lambda: answers(pool))
                await until_answers(process, "the Dispatcher", dispatcher.ready)
                process.ready(f"data Postgres and the Dispatcher answer; open at {at['delivery_internal']}")
                async with listening(pool, courier.wake), pruning(pool, timedelta(days=told.kept_days)):
                    await courier.deliver(process.stop)
    finally:
        await sender.close()
