"""`/internal/task-fetch` over the wire: what a claim is answered with, but for the lease."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest

from tests.support.cases.specification import has_shape, variants
from tests.support.dispatcher.alerts import DAG as WATCH
from tests.support.dispatcher.alerts import a_watch
from tests.support.dispatcher.control import PULL, Org, deployed_and_active
from tests.support.dispatcher.staged_files import staged
from tests.support.identity.service_tokens import as_service
from tests.support.operators import registered
from tests.support.systems.walk import Walk, walking
from tests.support.tls import https
from tests.support.verbs import trigger
from tracelake.domain.access.storage_locations import buffer_folder
from tracelake.wire.task.buffers import BufferPublishRequest
from tracelake.wire.task.lifecycle import Claimed, FetchAnswer, TaskPayload
from tracelake.wire.task.outputs import CompleteRequest, EventBody

pytestmark = pytest.mark.anyio

MILL = """
name: mill
defaults: {runtime: ecs_platform}
jobs:
  - {name: ask, operator: pull, source: {kind: manual}}
  - {name: grind, operator: pull, inputs: [{from: {job: ask}}]}
  - {name: bake, operator: pull, inputs: [{from: {job: grind}, name: flour, where: "block_number > 3"}]}
"""


async def fetched(walk: Walk, task: UUID) -> FetchAnswer:
    async with https(walk.listeners["dispatcher_internal"], walk.ca, headers=as_service("worker")) as http:
        answer = await http.get("/internal/task-fetch", params={"task_id": str(task)})
    assert answer.status_code == 200, answer.text
    assert not {"lease_token", "lease_expires_at", "capability_token"} & answer.json().keys()
    return msgspec.json.decode(answer.content, type=FetchAnswer)


def comparable(task_payload: TaskPayload) -> dict[str, Any]:
    """The payload; of a URL only what it opens, since each is signed anew."""
    fields: dict[str, Any] = {name: getattr(task_payload, name) for name in TaskPayload.__struct_fields__}
    udf = fields["udf"]
    return {**fields, "udf": udf and msgspec.structs.replace(udf, url=udf.url.partition("?")[0])}


async def queued(walk: Walk, org: Org, dag: str, job: str) -> UUID:
    await trigger(walk.control, org.id, dag, "ask", cursor=uuid4().int >> 70, request_id=uuid4())
    return await next_of(walk, job)


async def next_of(walk: Walk, job: str) -> UUID:
    await walk.until_outbox_is_empty()
    find = (
        "SELECT t.id FROM tasks t JOIN jobs j ON j.id = t.job_id"
        " WHERE j.name = $1 AND t.status = 'Queued' ORDER BY t.id LIMIT 1"
    )
    found: UUID = await walk.control.pool.fetchval(find, job)
    return found


async def claimed(walk: Walk, task: UUID) -> Claimed:
    answer = (await walk.dispatcher.claim_batch([task], "w"))[0]
    assert isinstance(answer, Claimed), answer
    return answer


async def complete(walk: Walk, task: Claimed, **more: Any) -> None:
    fence: dict[str, Any] = {"task_id": task.task.task_id, "attempt": task.attempt, "lease_token": task.lease_token}
    await walk.tasks.complete(task.capability_token, CompleteRequest(**fence, status="Completed", **more))


async def test_a_fetch_answers_what_a_claim_does_with_code_and_alerts_but_for_the_lease(
    state_db: str, queue_db: str, tmp_path: Path
) -> None:
    with registered(pull=PULL):
        async with walking(state_db, queue_db, tmp_path) as walk:
            org, _ = await a_watch(walk.control, "watchers")
            await deployed_and_active(walk.control, org, WATCH)
            task = await queued(walk, org, "watch", "look")
            before = await fetched(walk, task)
            answer = await claimed(walk, task)
            after = await fetched(walk, task)
            assert comparable(before) == comparable(answer.task) == comparable(after)
            assert (before.status, after.status) == ("Queued", "Running")
            assert [alert.name for alert in answer.task.alerts] == ["minnows", "whales"]
            assert answer.task.udf is not None
            assert answer.task.inputs
            (example,) = variants("001/4")
            assert has_shape(example["task"], msgspec.to_builtins(after))
            await publish_as_specified(walk, answer)


async def publish_as_specified(walk: Walk, task: Claimed) -> None:
    """The message that the Dispatcher puts onto the Buffer Queue has all that the specification shows."""
    dataset = task.task.outputs[0].dataset_uuid
    name = buffer_folder("trace-scratch", dataset, task.task.task_id, task.attempt).object("batch.jsonl")
    fence: dict[str, Any] = {"task_id": task.task.task_id, "attempt": task.attempt, "lease_token": task.lease_token}
    walk.control.objects.put(name, b"{}")
    request = BufferPublishRequest(**fence, batch_uri=str(name), dataset_uuid=dataset, record_count=1000)
    await walk.tasks.publish_buffer(task.capability_token, request)
    await walk.until_outbox_is_empty()
    deliveries = await walk.control.queue.receive(
        "buffer", max_messages=10, visibility=timedelta(minutes=1), wait=timedelta()
    )
    (message,) = (
        body for delivery in deliveries if (body := msgspec.json.decode(delivery.body))["kind"] == "buffer_batch"
    )
    (example,) = variants("001/12")
    assert has_shape(example, message)
    assert (message["batch_uri"], message["producer"]["attempt"]) == (str(name), 1)


async def test_a_fetch_returns_state_and_inputs_as_the_attempt_has_pinned_them_or_as_a_claim_would_now(
    state_db: str, queue_db: str, tmp_path: Path
) -> None:
    with registered(pull=PULL):
        async with walking(state_db, queue_db, tmp_path) as walk:
            await deployed_and_active(walk.control, walk.org, MILL)
            for start in (0, 10):
                grinding = await claimed(walk, await queued(walk, walk.org, "mill", "grind"))
                assert comparable(await fetched(walk, grinding.task.task_id)) == comparable(grinding.task)
                assert (grinding.task.state or {}).get("until") == (start or None)
                outputs = staged(walk.control.objects, grinding, (start, start + 9))
                dataset: dict[str, Any] = {
                    name: getattr(outputs[0], name) for name in ("dataset_uuid", "dataset_version", "start", "end")
                }
                events = [EventBody(**dataset)]
                await complete(walk, grinding, outputs=outputs, events=events, state={"until": start + 10})
                if start == 0:
                    first = await claimed(walk, await next_of(walk, "bake"))
            second = await next_of(walk, "bake")
            pinned, now = await fetched(walk, first.task.task_id), await fetched(walk, second)
            assert comparable(pinned) == comparable(first.task)
            assert comparable(now) == comparable((await claimed(walk, second)).task)
            assert [item.commit for item in (*pinned.inputs, *now.inputs)] == [1, 2]
            assert now.inputs[0].where is not None
