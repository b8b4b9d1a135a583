"""Messages about the shares that workers lease of the limits of a pool of nodes."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from tracelake.wire.message import Message, Number, ShortText

MAX_POOLS = 1000
Count = Annotated[int, Meta(ge=0, le=1_000_000)]
Rate = Annotated[float, Meta(ge=0)]


class PoolUse(Message, frozen=True):
    """What a worker does with a pool."""

    pool: ShortText
    max_concurrency: Annotated[int, Meta(ge=1, le=1_000_000)]
    """Of the settings."""
    held: Count
    """Requests that it may have under way, or has."""
    used: Count
    wanted: Count
    """The most that were under way or waited at once, since it last asked."""
    requests_per_second: Annotated[float, Meta(gt=0)] | None = None
    """Of the settings."""
    held_rate: Rate | None = None


class RpcSharesRequest(Message, frozen=True):
    worker: ShortText
    """Of this process: another one never has the same."""
    number: Number
    """Rises with each request: one that arrives late is refused."""
    pools: Annotated[list[PoolUse], Meta(max_length=MAX_POOLS)]
    """None: the worker stops, and returns what it has."""


class RpcShare(Message, frozen=True):
    pool: str
    in_flight: int
    """Requests that the worker may have under way at once."""
    rate: float | None
    """Calls a second that it may send to each node; None: no limit."""
    soon: bool
    """Ask again soon: it gets more when others have given it up, or others wait for what it gives up."""


class RpcSharesAnswer(Message, frozen=True):
    shares: list[RpcShare]
    lease_seconds: float
    """From when the request was sent. Then nothing of it may be used, unless it was renewed."""
