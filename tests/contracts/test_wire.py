"""Every JSON example of the specification is a message of ours, and nothing else is."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import msgspec
import pytest

from tests.support import checkouts
from tests.support.cases.specification import BLOCK, ID, TEXTS, has_shape, variants
from tests.support.session_policy import allows
from tracelake.domain.access.grants import StorageGrant
from tracelake.domain.access.object_names import Folder
from tracelake.domain.access.session_policy import session_policy
from tracelake.errors import InvalidRequest
from tracelake.sink.drain import BufferMessage
from tracelake.wire.message import Message, decode
from tracelake.wire.task.buffers import BufferPublishRequest
from tracelake.wire.task.lifecycle import Claimed, ClaimRequest, HeartbeatRequest, Invocation, NotClaimed, Wakeup
from tracelake.wire.task.outputs import CompleteRequest, EventBody, EventsRequest

FENCE = {"task_id": ID, "attempt": 1, "lease_token": ID}
CURSOR = {"dataset_uuid": ID, "dataset_version": ID, "cursor": 12345}

MESSAGES: dict[str, type[Message]] = {
    **dict.fromkeys(("000/1", "000/2"), EventBody),
    **dict.fromkeys(("001/1", "002/1"), Wakeup),
    "001/2": Invocation,
    "001/3": ClaimRequest,
    "001/4": Claimed,
    "001/5": NotClaimed,
    **dict.fromkeys(("001/6", "003/1"), BufferPublishRequest),
    **dict.fromkeys(("001/7", "003/2"), HeartbeatRequest),
    **dict.fromkeys(("001/8", "003/3"), CompleteRequest),
    **dict.fromkeys(("001/9", "001/10", "001/11", "003/4", "003/5", "003/6"), EventsRequest),
}
SUPERSEDED: dict[str, type[msgspec.Struct]] = {
    "002/2": Invocation,  # only a task_id: the full payload is sent
    "002/3": CompleteRequest,  # without a fence
    "002/4": EventBody,  # without a version
    "002/5": EventBody,
    "002/6": EventsRequest,  # without a fence
    "002/7": BufferMessage,  # records in the message: a pointer is sent
}
"""Of the first revision: a later document decides otherwise, so they are refused."""
NO_MESSAGES = {"000/3": "a session policy", "001/12": "a message of the Buffer Queue"}
EXAMPLES = {
    f"{example} {number}": (kind, body)
    for example, kind in MESSAGES.items()
    for number, body in enumerate(variants(example))
}


def test_every_example_of_the_specification_is_a_vector() -> None:
    assert sorted([*MESSAGES, *SUPERSEDED, *NO_MESSAGES]) == sorted(TEXTS)


def test_the_vectors_are_the_examples_word_for_word() -> None:
    for checkout in checkouts():
        documents = sorted((checkout.parent / "shared" / "spec").glob("00*.txt"))
        if documents:
            break
    else:
        pytest.skip("there is no shared/spec beside the checkout")
    found = {
        f"{path.name[:3]}/{number}": text
        for path in documents
        for number, text in enumerate(BLOCK.findall(path.read_text(encoding="utf-8")), start=1)
    }
    assert found == TEXTS


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_of_the_specification_is_read_and_written_as_it_stands(example: str) -> None:
    kind, body = EXAMPLES[example]
    message = decode(json.dumps(body).encode(), kind)
    written = json.loads(msgspec.json.encode(message))
    assert {name: written[name] for name in body} == expected(body, written)
    assert has_shape(body, written)


@pytest.mark.parametrize("example", SUPERSEDED)
def test_what_a_later_document_replaces_is_refused(example: str) -> None:
    (body,) = variants(example)
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(json.dumps(body), type=SUPERSEDED[example])


def test_a_message_of_the_buffer_queue_is_read_by_the_sink() -> None:
    (body,) = variants("001/12")
    read = msgspec.json.decode(json.dumps(body), type=BufferMessage)
    assert (read.kind, str(read.dataset_uuid)) == ("buffer_batch", ID)


def test_a_session_policy_allows_what_the_example_allows() -> None:
    text = TEXTS["000/3"].replace("<bucket>", "trace").replace("<read_prefix>", "in/").replace("<write_prefix>", "out/")
    read, write = Folder("trace", ("in",)), Folder("trace", ("out",))
    ours = session_policy(StorageGrant(frozenset({read, write}), frozenset({write})))
    for action, key in (("s3:GetObject", "in/x"), ("s3:PutObject", "out/x")):
        assert allows(text, action, "trace", key)
        assert allows(ours, action, "trace", key)
        assert not allows(ours, action, "trace", "elsewhere/x")
    for prefix in ("in/", "out/"):
        assert allows(text, "s3:ListBucket", "trace", prefix=prefix)
        assert allows(ours, "s3:ListBucket", "trace", prefix=prefix)
    assert json.loads(ours)["Version"] == json.loads(text)["Version"]


def expected(body: dict[str, Any], written: dict[str, Any]) -> dict[str, Any]:
    """What was sent, with the defaults that our types add inside of it."""
    return {name: merged(value, written[name]) for name, value in body.items()}


def merged(sent: Any, written: Any) -> Any:
    if isinstance(sent, dict) and isinstance(written, dict):
        return {**written, **{key: merged(value, written.get(key)) for key, value in sent.items()}}
    if isinstance(sent, list) and isinstance(written, list) and len(sent) == len(written):
        return [merged(id_, other) for id_, other in zip(sent, written, strict=True)]
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
