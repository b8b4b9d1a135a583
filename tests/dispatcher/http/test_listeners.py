"""The two APIs over real TLS: who may call, what is refused and how, and one task through all of it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import msgspec
import pytest

from tests.support.dispatcher.control import control_for
from tests.support.dispatcher.job_chain import a_task, completion
from tests.support.dispatcher.listeners import WORKER, Listeners, opened, settings_in
from tests.support.dispatcher.staged_files import staged
from tracelake.domain.access.object_names import ObjectName
from tracelake.errors import Forbidden
from tracelake.wire.client import LARGE_BYTES, TaskClient
from tracelake.wire.message import MAX_BODY_BYTES
from tracelake.wire.service.headers import SERVICE_TOKEN
from tracelake.wire.task.lifecycle import MAX_CLAIMS, Claimed
from tracelake.wire.task.outputs import MAX_COMPLETION_BYTES

pytestmark = pytest.mark.anyio


@pytest.fixture
async def listeners(state_db: str, queue_db: str, tmp_path: Path) -> AsyncIterator[Listeners]:
    async with control_for(state_db, queue_db, tmp_path) as control, opened(control, settings_in(tmp_path)) as made:
        yield made


async def test_one_task_through_both_apis(listeners: Listeners) -> None:
    claimed = await listeners.claim()
    assert claimed["status"] == "Claimed"
    beat = await listeners.say("heartbeat", claimed, progress={"done": 1, "total": 2})
    assert beat.status_code == 200
    assert beat.json()["canceled"] is False
    event = {
        "dataset_uuid": str(listeners.chain.datasets["first"]),
        "dataset_version": str(listeners.chain.versions["first"]),
    }
    sent = await listeners.say("events", claimed, events=[{**event, "cursor": 1}, {**event, "cursor": 2}])
    assert sent.json() == {"accepted": 2}
    again = await listeners.say("events", claimed, events=[{**event, "cursor": 1}, {**event, "cursor": 2}])
    assert again.json() == {"accepted": 0}
    done = await listeners.say("complete", claimed, status="Completed", events=[{**event, "start": 0, "end": 9}])
    assert done.json() == {"status": "Completed", "next_retry_at": None, "commits": None}
    late = await listeners.say("heartbeat", claimed)
    assert (late.status_code, late.json()["error"]["code"]) == (409, "lease_lost")


async def test_completions_that_come_together_are_judged_and_answered_each_by_itself(listeners: Listeners) -> None:
    good, forged, nonsense, stale, failed = [await listeners.claim() for _ in range(5)]
    assert (await listeners.say("complete", stale, status="Failed", error_message="no")).status_code == 200
    event = {
        "dataset_uuid": str(listeners.chain.datasets["first"]),
        "dataset_version": str(listeners.chain.versions["first"]),
    }
    items = [
        item(good, events=[{**event, "cursor": 1}]),
        item(forged, token=good["capability_token"]),
        item(nonsense, error_message="a completed task has no error"),
        item(stale),
        item(failed, status="Failed", error_message="it broke"),
        item(good, events=[{**event, "cursor": 1}]),
        item(forged, token="x.y.z"),
    ]
    answer = await listeners.task.post("/v1/task/complete-batch", json={"items": items})
    assert answer.status_code == 200, answer.text
    outcomes = answer.json()["outcomes"]
    assert [outcome["answer"] and outcome["answer"]["status"] for outcome in outcomes] == [
        *("Completed", None, None, None, "Failed", "Completed", None),
    ]
    codes = [outcome["error"] and (outcome["error"]["code"], outcome["error"]["where"]) for outcome in outcomes]
    assert codes[1] == ("forbidden", "/task_id")
    assert codes[2] == ("invalid_request", "/error_message")
    assert codes[3] == ("conflict", "/status")
    assert codes[6][0] == "unauthenticated"
    sql = "SELECT status::text FROM tasks WHERE job_id = $1 ORDER BY 1"
    found = [row["status"] for row in await listeners.control.pool.fetch(sql, listeners.chain.jobs["first"])]
    assert found == ["Completed", "Failed", "Failed", "Running", "Running"]
    assert await listeners.control.pool.fetchval("SELECT count(*) FROM events") == 1


async def test_a_client_batches_concurrent_completions_and_each_gets_its_own_answer(listeners: Listeners) -> None:
    claims = [msgspec.convert(await listeners.claim(), Claimed) for _ in range(30)]
    client = TaskClient(listeners.task)
    answers = await asyncio.gather(
        *(client.complete(claim.capability_token, completion(claim)) for claim in claims[:29]),
        client.complete(claims[0].capability_token, completion(claims[29])),
        return_exceptions=True,
    )
    assert [getattr(answer, "status", None) for answer in answers[:29]] == ["Completed"] * 29
    assert isinstance(answers[29], Forbidden)
    calls = listeners.control.metrics.text().decode()
    batches = re.search(r'route="/v1/task/complete-batch",status="200"[^}]*} (\d+)', calls)
    assert batches is not None
    assert int(batches[1]) <= 3


async def test_the_largest_completions_that_go_together_fit_into_one_body(listeners: Listeners) -> None:
    sizes = list[int]()

    async def seen(request: httpx.Request) -> None:
        sizes.append(int(request.headers["content-length"]))

    listeners.task.event_hooks["request"].append(seen)
    claims = [msgspec.convert(await listeners.claim(), Claimed) for _ in range(MAX_CLAIMS)]
    state = {"note": "x" * (LARGE_BYTES - len(claims[0].capability_token) - 600)}
    client = TaskClient(listeners.task)
    answers = await asyncio.gather(
        *(client.complete(claim.capability_token, completion(claim, state=state)) for claim in claims)
    )
    assert {answer.status for answer in answers} == {"Completed"}
    assert len(sizes) < 10
    assert MAX_BODY_BYTES / 2 < max(sizes) < MAX_BODY_BYTES


async def test_a_completion_with_thousands_of_partitions_is_accepted_and_replaced_as_a_whole(
    listeners: Listeners,
) -> None:
    client = TaskClient(listeners.task)
    for commit in (1, 2):
        task = msgspec.convert(await listeners.claim(), Claimed)
        outputs = staged(listeners.control.objects, task, *((10 * n, 10 * n + 9) for n in range(3_000)))
        events = [listeners.chain.event("first", start=10 * n, end=10 * n + 9) for n in range(3_000)]
        request = completion(task, outputs=outputs, events=events)
        assert len(msgspec.json.encode(request)) > MAX_BODY_BYTES
        answer = await client.complete(task.capability_token, request)
        assert answer.commits == {listeners.chain.datasets["first"]: commit}
        assert await client.complete(task.capability_token, request) == answer, "said again, answered again"
    current = "SELECT valid_from FROM partition_versions WHERE valid_to IS NULL"
    assert [row["valid_from"] for row in await listeners.control.pool.fetch(current)] == [2] * 3_000


async def test_a_large_completion_is_read_only_with_a_valid_token(listeners: Listeners) -> None:
    claimed, large = await listeners.claim(), b" " * (MAX_BODY_BYTES + 1)
    for token, status in ((None, 401), ("x.y.z", 401), (claimed["capability_token"], 400)):
        headers = {"X-Trace-Task-Capability": token} if token else {}
        answer = await listeners.task.post("/v1/task/complete", content=large, headers=headers)
        assert answer.status_code == status, token
        assert "larger" not in answer.text
    headers = {"X-Trace-Task-Capability": claimed["capability_token"]}
    answer = await listeners.task.post("/v1/task/complete", content=b" " * (MAX_COMPLETION_BYTES + 1), headers=headers)
    assert (answer.status_code, "larger" in answer.text) == (400, True)


def item(claimed: dict[str, Any], token: str | None = None, **more: Any) -> dict[str, Any]:
    fence = {name: claimed[name] for name in ("attempt", "lease_token")}
    completion = {"task_id": claimed["task"]["task_id"], **fence, "status": "Completed", **more}
    return {"capability_token": token or claimed["capability_token"], "completion": completion}


async def a_buffered_dataset(listeners: Listeners) -> UUID:
    dataset = listeners.chain.datasets["first"]
    await listeners.control.pool.execute(
        """UPDATE datasets SET storage = '{"kind": "buffered"}' WHERE id = $1""", dataset
    )
    place = "UPDATE dataset_versions SET storage_location = 'postgres_table:buffered.b_x' WHERE dataset_uuid = $1"
    await listeners.control.pool.execute(place, dataset)
    return dataset


async def test_a_buffer_publish_is_recorded_once_with_one_outbox_entry(listeners: Listeners) -> None:
    dataset = await a_buffered_dataset(listeners)
    claimed = await listeners.claim()
    body: dict[str, Any] = {
        "dataset_uuid": str(dataset),
        "batch_uri": f"s3://trace-scratch/buffers/{dataset}/{claimed['task']['task_id']}/1/batch.jsonl",
        "record_count": 10,
    }
    missing = await listeners.say("buffer-publish", claimed, **body)
    assert (missing.status_code, missing.json()["error"]["where"]) == (404, "/batch_uri"), "it is not there yet"
    batch = ObjectName.parse(body["batch_uri"])
    listeners.control.objects.put(batch, b"{}")
    first = await listeners.say("buffer-publish", claimed, **body)
    listeners.control.objects.delete([batch])  # merged, and removed: said again, it is the same publish
    again = await listeners.say("buffer-publish", claimed, **body)
    assert first.status_code == 200, first.text
    assert again.json() == first.json()
    other = await listeners.say("buffer-publish", claimed, **{**body, "record_count": 11})
    assert (other.status_code, other.json()["error"]["where"]) == (409, "/batch_uri")
    foreign = await listeners.say(
        "buffer-publish", claimed, **{**body, "batch_uri": "s3://trace/elsewhere/batch.jsonl"}
    )
    assert (foreign.status_code, foreign.json()["error"]["where"]) == (403, "/batch_uri")
    entries = "SELECT count(*) FROM outbox WHERE kind = 'publish_buffer'"
    assert await listeners.control.pool.fetchval(entries) == 1


async def test_only_an_attempt_that_may_still_write_publishes_a_batch(listeners: Listeners) -> None:
    dataset = await a_buffered_dataset(listeners)
    claimed = await listeners.claim()
    uri = f"s3://trace-scratch/buffers/{dataset}/{claimed['task']['task_id']}/1/batch.jsonl"
    listeners.control.objects.put(ObjectName.parse(uri), b"{}")
    body: dict[str, Any] = {"dataset_uuid": str(dataset), "batch_uri": uri, "record_count": 1}
    forged = await listeners.say("buffer-publish", claimed, **body, lease_token=str(uuid4()))
    assert (forged.status_code, forged.json()["error"]["code"]) == (409, "lease_lost")
    assert (await listeners.say("complete", claimed, status="Completed")).status_code == 200
    late = await listeners.say("buffer-publish", claimed, **body)
    assert (late.status_code, late.json()["error"]["code"]) == (409, "lease_lost")
    assert await listeners.control.pool.fetchval("SELECT count(*) FROM outbox WHERE kind = 'publish_buffer'") == 0


async def test_each_identity_is_accepted_by_its_own_api_only(listeners: Listeners) -> None:
    claimed = await listeners.claim()
    capability, body = claimed["capability_token"], {"task_id": str(uuid4()), "worker_id": "w"}
    for headers in ({}, {"X-Trace-Worker-Token": capability}, {"X-Trace-Worker-Token": "wrong"}):
        answer = await listeners.internal.post("/internal/task-claim", json=body, headers=headers)
        assert answer.status_code == 401, headers
    for token in (WORKER[SERVICE_TOKEN], "", capability[:-4] + "AAAA"):
        assert (await listeners.say("heartbeat", claimed, token=token or "x")).status_code == 401, token
    assert (await listeners.task.post("/internal/task-claim", json=body, headers=WORKER)).status_code == 404
    assert (await listeners.internal.post("/v1/task/heartbeat", json=body, headers=WORKER)).status_code == 404


async def test_the_token_of_one_task_does_not_speak_for_another(listeners: Listeners) -> None:
    claimed, other = await listeners.claim(), await listeners.claim()
    calls: dict[str, dict[str, Any]] = {"heartbeat": {}, "complete": {"status": "Completed"}, "events": {"events": []}}
    for verb, more in calls.items():
        answer = await listeners.say(verb, claimed, token=other["capability_token"], **more)
        assert (answer.status_code, answer.json()["error"]["where"]) == (403, "/task_id")


async def test_a_good_token_of_an_ended_attempt_is_refused(listeners: Listeners) -> None:
    claimed = await listeners.claim()
    await listeners.say("complete", claimed, status="Completed")
    calls: dict[str, dict[str, Any]] = {"heartbeat": {}, "events": {"events": []}}
    for verb, more in calls.items():
        assert (await listeners.say(verb, claimed, **more)).status_code == 409


@pytest.mark.parametrize("path", ["/internal/task-complete", "/internal/heartbeat", "/internal/events"])
async def test_the_names_of_the_first_revision_do_not_exist(listeners: Listeners, path: str) -> None:
    for listener in (listeners.task, listeners.internal):
        answer = await listener.post(path, json={}, headers=WORKER)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


async def test_a_claim_says_why_it_gives_nothing(listeners: Listeners) -> None:
    assert await listeners.claim(uuid4()) == {"status": "NotClaimed", "reason": "NotFound"}
    claimed = await listeners.claim()
    task_id = claimed["task"]["task_id"]
    assert (await listeners.claim(task_id))["reason"] == "AlreadyRunning"
    await listeners.say("complete", claimed, status="Completed")
    assert (await listeners.claim(task_id))["reason"] == "Completed"


async def test_bad_requests_are_refused_with_the_pointer(listeners: Listeners) -> None:
    claimed = await listeners.claim()
    unknown = await listeners.say("heartbeat", claimed, surprise=1)
    assert (unknown.status_code, unknown.json()["error"]["where"]) == (400, "/surprise")
    half = await listeners.say("events", claimed, events=[{"dataset_uuid": str(uuid4()), "dataset_version": "x"}])
    assert (half.status_code, half.json()["error"]["where"]) == (400, "/events/0/dataset_version")
    large = await listeners.task.post("/v1/task/heartbeat", content=b" " * (MAX_BODY_BYTES + 1))
    assert large.status_code == 400
    nul = await listeners.say("complete", claimed, status="Failed", error_message="a\0b")
    assert nul.status_code == 400


async def test_a_task_can_be_fetched_and_the_key_set_shows_public_halves_only(listeners: Listeners) -> None:
    claimed = await listeners.claim()
    path = f"/internal/task-fetch?task_id={claimed['task']['task_id']}"
    fetched = await listeners.internal.get(path, headers=WORKER)
    assert fetched.json()["status"] == "Running"
    assert fetched.json()["operator"] == "noop"
    assert (await listeners.internal.get(path)).status_code == 401
    assert (await listeners.internal.get("/internal/task-fetch?task_id=x", headers=WORKER)).status_code == 400
    keys = (await listeners.internal.get("/internal/jwks/task")).json()["keys"]
    assert keys
    assert all("d" not in key for key in keys)


async def test_the_loops_bring_an_event_to_the_queue_without_being_stepped(listeners: Listeners) -> None:
    claimed = await listeners.claim()
    event = {
        "dataset_uuid": str(listeners.chain.datasets["first"]),
        "dataset_version": str(listeners.chain.versions["first"]),
    }
    await listeners.say("complete", claimed, status="Completed", events=[{**event, "cursor": 5}])
    (delivery,) = await listeners.control.queue.receive(
        "tasks-ecs_platform", max_messages=1, visibility=timedelta(minutes=1), wait=timedelta(seconds=30)
    )
    second = await listeners.claim(json.loads(delivery.body)["task_id"])
    assert second["task"]["job"] == {"dag_name": "chain", "name": "second"}
    assert second["task"]["scope"]["cursor"] == 5


async def test_several_claims_in_one_call_are_answered_in_their_order_as_each_would_be(listeners: Listeners) -> None:
    first, second = [await a_task(listeners.control, listeners.chain) for _ in range(2)]
    task_ids = [str(task) for task in (first, uuid4(), second, first)]
    body = {"task_ids": task_ids, "worker_id": "w"}
    answer = await listeners.internal.post("/internal/task-claim-batch", json=body, headers=WORKER)
    assert answer.status_code == 200, answer.text
    given, missing, two, again = answer.json()["answers"]
    assert missing == {"status": "NotClaimed", "reason": "NotFound"}
    given, again = sorted(
        (given, again), key=lambda element: str(element["status"])
    )  # requested twice: given once, to either
    assert again == {"status": "NotClaimed", "reason": "AlreadyRunning"}
    assert [given["task"]["task_id"], two["task"]["task_id"]] == [str(first), str(second)]
    assert given.keys() == (await listeners.claim()).keys()
    done = [await listeners.say("complete", claimed, status="Completed") for claimed in (given, two)]
    assert [outcome.status_code for outcome in done] == [200, 200]


async def test_a_task_named_twice_in_one_call_is_given_once_also_when_the_call_is_repeated(
    listeners: Listeners,
) -> None:
    """Two wake-ups of one task may be received together; run twice, one attempt would spoil its own output."""
    task = str(await a_task(listeners.control, listeners.chain))
    body = {"task_ids": [task, task], "worker_id": "w", "claim_id": str(uuid4())}
    given = []
    for _ in range(2):
        answer = await listeners.internal.post("/internal/task-claim-batch", json=body, headers=WORKER)
        assert answer.status_code == 200, answer.text
        given.append(
            [
                item["lease_token"] if item["status"] == "Claimed" else item["reason"]
                for item in answer.json()["answers"]
            ]
        )
    assert given[0].count("AlreadyRunning") == 1, "to either of the two"
    assert given[1] == given[0], "and to the same one again"


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ({"task_ids": [], "worker_id": "w"}, "/task_ids"),
        ({"task_ids": [str(uuid4())] * 101, "worker_id": "w"}, "/task_ids"),
        ({"task_ids": ["x"], "worker_id": "w"}, "/task_ids/0"),
    ],
)
async def test_a_batch_of_claims_that_is_none_is_refused(
    listeners: Listeners, body: dict[str, Any], where: str
) -> None:
    answer = await listeners.internal.post("/internal/task-claim-batch", json=body, headers=WORKER)
    assert (answer.status_code, answer.json()["error"]["where"]) == (400, where)
    unknown = await listeners.internal.post("/internal/task-claim-batch", json=body)
    assert unknown.status_code == 401
