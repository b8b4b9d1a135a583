"""Which nodes serve a chain, how fast they may be asked, and how much of what they say is checked.

Plain frozen data: picklable, so that an executor of Spark gets it with its task. No secret is ever shown: an endpoint's
address and headers often hold an API key, so only its name goes into texts.
"""

from __future__ import annotations

import re
from base64 import b64encode
from dataclasses import dataclass, field
from urllib.parse import SplitResult, unquote, urlsplit

_SHORTEST_SECRET = 6
"""Shorter pieces of an address are words such as `v2`: hiding them would only spoil a message."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One node. `name` is what errors and logs say; without one it is the host."""

    url: str = field(repr=False)
    name: str = ""
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @property
    def label(self) -> str:
        return self.name or urlsplit(self.url).hostname or "endpoint"

    def hide(self, text: str) -> str:
        """A node's own words without the parts of our address and headers that it may have echoed."""
        for secret in self._secrets():
            text = text.replace(secret, "***")
        return text

    def _secrets(self) -> list[str]:
        parts = urlsplit(self.url)
        pieces = [*_account(parts), *re.split(r"[/&=?]", f"{parts.path}?{parts.query}")]
        pieces += [piece for _, value in self.headers for piece in (value, *value.split())]
        pieces += [unquote(piece) for piece in pieces]
        return sorted({piece for piece in pieces if len(piece) >= _SHORTEST_SECRET}, key=len, reverse=True)


def _account(parts: SplitResult) -> tuple[str, str, str]:
    """The name and password in an address, and their form in the Authorization header."""
    name, password = parts.username or "", parts.password or ""
    both = f"{unquote(name)}:{unquote(password)}"
    return name, password, b64encode(both.encode("latin1", "replace")).decode()


@dataclass(frozen=True, slots=True)
class Limiter:
    """Where a worker's share of the limits is asked for (`limits_server.py`)."""

    host: str
    port: int
    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class RpcPool:
    """Everything that asking a chain needs.

    Limits hold for all who ask one `limiter`; without one, for all clients of this process together.
    """

    name: str
    chain_id: int
    endpoints: tuple[Endpoint, ...]
    max_concurrency: int = 8
    """HTTP requests under way at once, over all endpoints."""
    batch_size: int = 100
    """Calls in one HTTP request, at most those of a second; halved for an endpoint that finds it too many."""
    requests_per_second: float | None = None
    """Calls a second to each endpoint: what providers count. None: no limit of our own."""
    timeout: float = 30.0
    """Seconds for one HTTP request."""
    response_bytes: int = 256 << 20
    """The most that is read of one HTTP response: far above any honest one, and what a process can hold."""
    verify_roots: float = 1.0
    """Share of blocks whose transactions and receipts are hashed up to the header's roots; fixed by block number."""
    attempts: int = 6
    """How often one piece of work is tried, on whichever endpoints, before its last error is raised."""
    rest: float = 0.2
    """Seconds that an endpoint rests after a failure; doubles with each one in a row, with jitter."""
    longest_rest: float = 15.0
    """Seconds: the end of that doubling, and the most that a Retry-After is believed."""
    limiter: Limiter | None = None
    counted_for: str = field(default="", compare=False)
    """The task whose calls these are (`limits.py` counts them); what is known of the nodes is the same for all."""

    def __post_init__(self) -> None:
        if not self.endpoints:
            raise ValueError(f"pool {self.name} has no endpoint")
        if not 0 <= self.verify_roots <= 1:
            raise ValueError(f"pool {self.name}: verify_roots is a share, 0 to 1")
