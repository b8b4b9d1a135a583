"""Records a call of a user in the audit: an entry before the call is made, and its outcome after it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol
from uuid import UUID

import httpx
import msgspec
from starlette.requests import Request

from tracelake.errors import BadInput, Forbidden, Refused, TraceError
from tracelake.wire.calls.user_calls import Call
from tracelake.wire.message import Message
from tracelake.wire.send_call import send_call
from tracelake.wire.service.gate import named_user
from tracelake.wire.service.headers import CLIENT, ServiceUser

CallOutcome = Literal["done", "refused", "failed"]
Short = Annotated[str, msgspec.Meta(max_length=2_000)]


class AuditBeginRequest(Message, frozen=True):
    """A call that a service answers, of the user whom it names."""

    action: Short
    object: Short
    client: Annotated[str, msgspec.Meta(max_length=64)]


class AuditBegun(Message, frozen=True):
    entry: UUID


class AuditEndRequest(Message, frozen=True):
    entry: UUID
    action: Short
    outcome: CallOutcome
    code: Short | None = None


class AuditEnded(Message, frozen=True):
    entry: UUID


class AuditBook(Protocol):
    """Where the entry of one call is written."""

    async def begin(self) -> UUID: ...
    async def end(self, entry: UUID, outcome: CallOutcome, code: str | None) -> None: ...


@asynccontextmanager
async def recorded_in(book: AuditBook, *, reads: bool) -> AsyncIterator[None]:
    """Of a call that only reads, a refusal for the user's role is recorded, and nothing else.

    A process that ends within the block leaves an entry without an outcome: the call may have been done.
    """
    begun = None if reads else await book.begin()
    try:
        yield
    except TraceError as error:
        if not reads or isinstance(error, Forbidden):
            outcome: CallOutcome = "refused" if isinstance(error, BadInput | Refused) else "failed"
            await book.end(begun or await book.begin(), outcome, error.code)
        raise
    except Exception as error:
        if begun is not None:
            await book.end(begun, "failed", type(error).__name__)
        raise
    if begun is not None:
        await book.end(begun, "done", None)


def object_of(path: Mapping[str, str]) -> str:
    """What a call is about: neither query nor body, which may hold secrets."""
    return " ".join(f"{name}={value}" for name, value in path.items())


def client_of(request: Request) -> str:
    """The address that the Gateway wrote."""
    return request.headers.get(CLIENT, "unknown")[:64]


@dataclass(frozen=True)
class AtDispatcher:
    """The Dispatcher writes the entry, for a service that answers calls of users."""

    http: httpx.AsyncClient
    user: ServiceUser
    action: str
    object: str
    client: str

    @classmethod
    def of(cls, http: httpx.AsyncClient, call: Call, request: Request) -> AtDispatcher:
        return cls(http, named_user(request), call.name, object_of(request.path_params), client_of(request))

    async def begin(self) -> UUID:
        asked = AuditBeginRequest(action=self.action, object=self.object, client=self.client)
        return (await send_call(self.http, "/internal/audit/begin", asked, AuditBegun, self.user.headers)).entry

    async def end(self, entry: UUID, outcome: CallOutcome, code: str | None) -> None:
        ended = AuditEndRequest(entry=entry, action=self.action, outcome=outcome, code=code)
        await send_call(self.http, "/internal/audit/end", ended, AuditEnded, self.user.headers)
