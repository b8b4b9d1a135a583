"""A task that has failed permanently raises its organisation's alert once: by the outbox, the sink and delivery."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.support.dispatcher.job_chain import Chain, a_task, claimed, completion, deploy_chain, drained
from tests.support.systems.delivery import DeliverySystem, Receiver
from tests.support.waiting import until
from tracelake.dispatcher.control import Control
from tracelake.settings import SinkSettings
from tracelake.sink.drain import Sink
from tracelake.sink.process import limits_of
from tracelake.sink.write import Writer
from tracelake.wire.client import DispatcherClient

pytestmark = pytest.mark.anyio

USER = "test|shop"


def no_spark() -> Any:
    raise AssertionError("no row is written")


async def fail_for_good(control: Control, chain: Chain, error: str) -> str:
    task, claims = await claimed(control, await a_task(control, chain))
    await control.completer()(completion(task, status="Failed", error_message=error, retryable=False), claims)
    return str(task.task.task_id)


async def lose_for_good(control: Control, chain: Chain) -> str:
    task, _ = await claimed(control, await a_task(control, chain))
    await control.pool.execute("UPDATE jobs SET max_platform_failures = 1")
    await control.pool.execute("UPDATE tasks SET lease_expires_at = now() WHERE id = $1", task.task.task_id)
    assert await control.expire_leases().once() == 1
    return str(task.task.task_id)


async def test_a_task_that_failed_permanently_is_sent_once_to_each_channel_of_its_organisations_alert(
    system: DeliverySystem, receiver: Receiver
) -> None:
    control = system.gateway_system.control
    chain, other = await deploy_chain(control, slug="shop"), await deploy_chain(control, slug="other")
    await fail_for_good(control, chain, "before there was an alert")
    await system.channel(user=USER)
    await system.alert("task_failed", user=USER)
    await fail_for_good(control, other, "of an organisation that defines none")
    failed = {await fail_for_good(control, chain, "no luck"), await lose_for_good(control, chain)}
    revived = await fail_for_good(control, chain, "and retried before the alert was sent")
    await system.got(USER, "POST", f"/v1/tasks/{revived}/retry")
    await drained(control)
    # The same entries once more, as after a crash between publish and mark.
    again = "UPDATE outbox SET status = 'Pending', processed_at = NULL WHERE kind = 'notify_failure' RETURNING id"
    assert len(await control.pool.fetch(again)) == 3
    await drained(control)
    writer = Writer(no_spark, control.objects, system.data_dsn, limits_of(SinkSettings()))
    sink, stop = Sink(control.queue, "buffer", DispatcherClient(system.gateway_system.inside), writer), asyncio.Event()
    draining = asyncio.create_task(sink.drain(stop))

    async def all_taken() -> bool:
        depth = await control.queue.depth("buffer")
        return depth.ready + depth.in_flight == 0

    async with system.delivering():
        await until(all_taken, "the buffer queue is empty")
        states = await system.settled()
    stop.set()
    await draining
    assert states == {f"task:{task}": ("Sent", 1, None) for task in failed}
    bodies = {body["event"]["payload"]["task_id"]: body for body in (json.loads(got.body) for got in receiver.got)}
    assert bodies.keys() == failed
    assert {body["event"]["payload"]["fault"] for body in bodies.values()} == {"job", "platform"}
    first = next(body for body in bodies.values() if body["event"]["payload"]["fault"] == "job")
    assert (first["alert"]["name"], first["event"]["payload"]["error"]) == ("task_failed", "no luck")
