"""Base types of every message on the wire, and how a body is decoded."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Final, TypeVar
from uuid import UUID

import msgspec

from tracelake.errors import InvalidRequest

CAPABILITY_HEADER: Final = "X-Trace-Task-Capability"
MAX_BODY_BYTES = 1024 * 1024


# The limits of the database: a number or text beyond them is the sender's mistake.
AttemptNumber = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]


Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


ShortText = Annotated[str, msgspec.Meta(min_length=1, max_length=2_000)]


ErrorCode = Annotated[str, msgspec.Meta(min_length=1, max_length=100)]


LongText = Annotated[str, msgspec.Meta(max_length=20_000)]


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every body: immutable, and closed to fields it does not know."""


class Fenced(Message, frozen=True, kw_only=True):
    """The fields of every task-scoped call: it counts only for the current attempt and lease."""

    task_id: UUID
    attempt: AttemptNumber
    lease_token: UUID


B = TypeVar("B", bound=Message)


def decode(body: bytes, kind: type[B], most: int = MAX_BODY_BYTES) -> B:
    """The body as its type, or InvalidRequest with the JSON pointer of what is wrong."""
    if len(body) > most:
        raise InvalidRequest(f"the body has {len(body)} bytes; at most {most} are taken", where="")
    if b"\\u0000" in body:
        raise InvalidRequest("the body holds a NUL character, which cannot be stored", where="")
    try:
        decoded = msgspec.json.decode(body, type=kind)
        _EACH_KEY_ONCE.decode(body.decode())
    except msgspec.ValidationError as wrong:
        message, _, path = str(wrong).partition(" - at `")
        unknown = re.search(r"unknown field `(.*)`", message)
        raise InvalidRequest(message, where=pointer(path.rstrip("`")) + (f"/{unknown[1]}" if unknown else "")) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as wrong:
        raise InvalidRequest(f"the body is not JSON: {wrong}", where="") from None
    return decoded


def _refuse_repeated_key(pairs: list[tuple[str, Any]]) -> None:
    if len({key for key, _ in pairs}) != len(pairs):
        names = [key for key, _ in pairs]
        twice = next(key for key in names if names.count(key) > 1)
        raise InvalidRequest(f"the key {twice[:80]!r} is there twice in one object", where="", hint="send it once")


_EACH_KEY_ONCE: Final = json.JSONDecoder(object_pairs_hook=_refuse_repeated_key)
"""Two readers may keep different ones of two equal keys; msgspec keeps the last."""


def pointer(path: str) -> str:
    """`$.events[0].cursor` as `/events/0/cursor`."""
    parts = re.findall(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]", path)
    return "".join(f"/{name or index}" for name, index in parts)
