"""Every JSON example of the specification is a message of ours, and nothing else is."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import msgspec
import pytest

from trace_platform.contracts import (
    BufferPublishRequest,
    Claimed,
    ClaimRequest,
    CompleteRequest,
    EventBody,
    EventsRequest,
    HeartbeatRequest,
    Message,
    NotClaimed,
    Wakeup,
    decode,
)
from trace_platform.errors import InvalidRequest

ID = "7d444840-9dc0-11d1-b245-5ffdce74fad2"
FENCE = {"task_id": ID, "attempt": 1, "lease_token": ID}
CURSOR = {"dataset_uuid": ID, "dataset_version": ID, "cursor": 12345}
PARTITION = {
    "dataset_uuid": ID,
    "dataset_version": ID,
    "partition_key": "1000000-1010000",
    "start": 1000000,
    "end": 1010000,
}
OUTPUTS = [
    {
        "output_index": index,
        "dataset_uuid": ID,
        "dataset_version": ID,
        "location": f"postgres_table:dataset_{ID}",
        "cursor": 12345,
        "row_count": rows,
    }
    for index, rows in ((0, 1000), (1, 20000))
]
PUBLISHED = {
    "dataset_uuid": ID,
    "dataset_version": ID,
    "storage_ref": {"scheme": "s3", "bucket": "bucket", "prefix": f"cold/datasets/{ID}/{ID}/", "glob": "*.parquet"},
    "config_hash": "string",
    "range_start": 100,
    "range_end": 200,
}
COMPLETE = {**FENCE, "status": "Completed", "events": [CURSOR], "outputs": OUTPUTS, "error_message": None}

EXAMPLES: dict[str, tuple[type[Message], dict[str, Any]]] = {
    "001 queue wake-up": (Wakeup, {"task_id": ID}),
    "001 task claim": (ClaimRequest, {"task_id": ID, "worker_id": "ecs:cluster/service/task"}),
    "001 claimed": (
        Claimed,
        {
            "status": "Claimed",
            "attempt": 1,
            "lease_token": ID,
            "lease_expires_at": "2025-12-31T12:00:00Z",
            "capability_token": "jwt",
            "task": {
                "task_id": ID,
                "attempt": 1,
                "job": {"dag_name": "monad", "name": "block_follower"},
                "operator": "block_follower",
                "config": {"...": "..."},
                "inputs": [],
            },
        },
    ),
    "001 not claimed": (NotClaimed, {"status": "NotClaimed", "reason": "AlreadyRunning"}),
    "001 buffer publish": (
        BufferPublishRequest,
        {
            **FENCE,
            "dataset_uuid": ID,
            "dataset_version": ID,
            "batch_uri": f"s3://trace-scratch/buffers/{ID}/{ID}/1/batch.jsonl",
            "record_count": 1000,
        },
    ),
    "003 buffer publish": (
        BufferPublishRequest,
        {
            **FENCE,
            "batch_uri": f"s3://trace-scratch/buffers/{ID}/1/batch.jsonl",
            "content_type": "application/jsonl",
            "batch_size_bytes": 123456,
            "dedupe_scope": "alert_events",
        },
    ),
    "001 003 heartbeat": (HeartbeatRequest, FENCE),
    "001 completion": (CompleteRequest, COMPLETE),
    "003 completion": (CompleteRequest, {**COMPLETE, "datasets_published": [PUBLISHED]}),
    "001 003 one event": (EventsRequest, {**FENCE, "events": [CURSOR]}),
    "001 003 partitioned event": (EventsRequest, {**FENCE, "events": [PARTITION]}),
    "001 003 batch of events": (EventsRequest, {**FENCE, "events": [CURSOR, CURSOR]}),
    "000 cursor event": (EventBody, CURSOR),
    "000 partition event": (EventBody, PARTITION),
}


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_of_the_specification_is_read_as_it_stands(example: str) -> None:
    kind, body = EXAMPLES[example]
    message = decode(json.dumps(body).encode(), kind)
    written = json.loads(msgspec.json.encode(message))
    assert {name: written[name] for name in body} == expected(body, written)


def expected(body: dict[str, Any], written: dict[str, Any]) -> dict[str, Any]:
    """What was sent, with the defaults that our types add inside of it."""
    return {name: merged(value, written[name]) for name, value in body.items()}


def merged(sent: Any, written: Any) -> Any:
    if isinstance(sent, dict) and isinstance(written, dict):
        return {**written, **{key: merged(value, written.get(key)) for key, value in sent.items()}}
    if isinstance(sent, list) and isinstance(written, list) and len(sent) == len(written):
        return [merged(one, other) for one, other in zip(sent, written, strict=True)]
    return sent


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_unknown_field_is_refused_with_its_pointer(example: str) -> None:
    kind, body = EXAMPLES[example]
    with pytest.raises(InvalidRequest) as refused:
        decode(json.dumps({**body, "surprise": 1}).encode(), kind)
    assert refused.value.where == "/surprise"


REFUSED = {
    "not JSON": (b"{", ""),
    "not an object": (b"[]", ""),
    "not UTF-8": (b'{"task_id": "\xff"}', ""),
    "a wrong type": (json.dumps({**FENCE, "attempt": "1"}).encode(), "/attempt"),
    "a wrong type deep inside": (
        json.dumps({**FENCE, "events": [CURSOR, {**CURSOR, "cursor": "x"}]}).encode(),
        "/events/1/cursor",
    ),
    "an unknown field deep inside": (json.dumps({**FENCE, "events": [{**CURSOR, "x": 1}]}).encode(), "/events/0/x"),
    "a number too large": (json.dumps({**FENCE, "attempt": 2**70}).encode(), "/attempt"),
    "a missing field": (json.dumps({"task_id": ID, "attempt": 1}).encode(), ""),
    "nested without end": (b'{"events":' + b"[" * 100_000, "/events"),
    "too large": (b" " * 2_000_000, ""),
}


@pytest.mark.parametrize("case", REFUSED)
def test_nonsense_is_refused_with_the_pointer_of_what_is_wrong(case: str) -> None:
    body, where = REFUSED[case]
    with pytest.raises(InvalidRequest) as refused:
        decode(body, EventsRequest)
    assert (refused.value.where or "").startswith(where)


def test_uuids_are_uuids() -> None:
    assert decode(json.dumps(FENCE).encode(), HeartbeatRequest).task_id == UUID(ID)
