"""Counts identities that a process refuses, for the audit: one entry a minute for many refusals of the same kind.

A stranger may be refused as often as he likes. So refusals are counted in memory, which holds few kinds of them, and
stored beside the calls: neither the database nor the process can be filled.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final, Literal

import msgspec

from tracelake.domain.access.subjects import MAX_SUBJECT
from tracelake.wire.message import Message

STORED_EVERY_SECONDS: Final = 60.0
MOST_KEPT: Final = 50
"""Different ones within a minute; the others are counted together."""
OTHERS: Final = "others"
MOST_SENT: Final = 100

RefusedAs = Literal["user_token", "personal_token", "unknown_user", "service_token"]
Key = tuple[RefusedAs, str, str]


class Refusal(Message, frozen=True):
    """How often an identity was refused at a process, since it last said so."""

    kind: RefusedAs
    who: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_SUBJECT)]
    """The subject of a token that holds, or the SHA-256 of one that does not."""
    origin: Annotated[str, msgspec.Meta(max_length=64)]
    """The address that the call came from."""
    refusals: Annotated[int, msgspec.Meta(ge=1)]


class RefusalsRequest(Message, frozen=True):
    refusals: Annotated[list[Refusal], msgspec.Meta(min_length=1, max_length=MOST_SENT)]


class RefusalsStored(Message, frozen=True):
    stored: int


class RefusalCounts:
    """Of one process."""

    def __init__(self) -> None:
        self._counts: dict[Key, int] = {}

    def add(self, kind: RefusedAs, who: str, origin: str, refusals: int = 1) -> None:
        key: Key = (kind, who, origin[:64])
        if key not in self._counts and len(self._counts) >= MOST_KEPT:
            key = (kind, OTHERS, OTHERS)
        self._counts[key] = self._counts.get(key, 0) + refusals

    def take(self) -> list[Refusal]:
        taken, self._counts = self._counts, {}
        return [Refusal(kind=kind, who=who, origin=origin, refusals=n) for (kind, who, origin), n in taken.items()]

    def put_back(self, refusals: Iterable[Refusal]) -> None:
        """Those that could not be stored are stored later."""
        for item in refusals:
            self.add(item.kind, item.who, item.origin, item.refusals)
