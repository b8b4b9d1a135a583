"""Chooses the next endpoint: round robin without those that are paused; a failed endpoint is paused with backoff.

The health of a pool is shared in a process (`health_of`): all ranges that a Spark worker fetches share limits and
pauses.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from dataclasses import dataclass

from tracelake.chain.nodes.limits_server import limits_of
from tracelake.chain.nodes.rpc_pool import Endpoint, RpcPool
from tracelake.errors import ProviderError, ProviderThrottled
from tracelake.runtime.retry import delay_after

_lock = threading.Lock()
_of_pool: dict[RpcPool, Health] = {}


@dataclass(slots=True)
class EndpointState:
    """What this process knows of one endpoint."""

    place: int
    endpoint: Endpoint
    batch_size: int
    """Calls in one request: never more than a second's share, or the first request would break the limit."""
    whole_receipts: bool = True
    """It knows eth_getBlockReceipts."""
    log_span: int = 1 << 62
    """Blocks that one eth_getLogs may cover; halved when it finds them too many."""
    failures: int = 0
    rests_until: float = 0.0


def health_of(pool: RpcPool) -> Health:
    """The one of this process, for all who ask this pool with the same settings."""
    with _lock:
        return _of_pool.setdefault(pool, Health(pool))


class Health:
    def __init__(self, pool: RpcPool) -> None:
        self._pool = pool
        batch = min(pool.batch_size, max(1, int(pool.requests_per_second or pool.batch_size)))
        self.standings = [EndpointState(place, endpoint, batch) for place, endpoint in enumerate(pool.endpoints)]
        self.limits = limits_of(pool)
        self._next = 0
        self._lock = threading.Lock()
        self._jitter = random.Random()  # noqa: S311 - spreads retries, guards nothing

    async def choose(self, avoid: set[int], only: int | None = None) -> EndpointState:
        """The next in turn that does not rest, none of `avoid` if it can be helped; waits if all of them rest."""
        now = time.monotonic()
        with self._lock:
            in_turn = self.standings[self._next :] + self.standings[: self._next]
            turn = in_turn if only is None else [self.standings[only]]
            wanted = [item for item in turn if item.place not in avoid] or turn
            chosen = min(wanted, key=lambda item: max(0.0, item.rests_until - now))
            self._next = (chosen.place + 1) % len(self.standings)
        if chosen.rests_until > now:
            await asyncio.sleep(chosen.rests_until - now)
        return chosen

    def start_anywhere(self) -> None:
        """For callers that ask the same calls again and again: by turns alone, each call could go to the same endpoint
        every time, and one that lags or is on another fork would be the only one asked for the head.
        """
        with self._lock:
            self._next = self._jitter.randrange(len(self.standings))

    async def witness(self, silent: set[int], until: float) -> EndpointState | None:
        """One that is not of `silent`, and does not rest beyond `until`; None if there is none."""
        others = [
            standing for standing in self.standings if standing.place not in silent and standing.rests_until <= until
        ]
        if not others or (now := time.monotonic()) > until:
            return None
        first = min(others, key=lambda other: other.rests_until)
        await asyncio.sleep(max(0.0, first.rests_until - now))
        return first

    def worked(self, standing: EndpointState) -> None:
        standing.failures = 0

    def failed(self, standing: EndpointState, error: ProviderError, began: float) -> None:
        """Pauses it. Requests that began before the last pause are ignored: many fail together."""
        now = time.monotonic()
        asked_for = error.retry_after if isinstance(error, ProviderThrottled) else None
        if began >= standing.rests_until or asked_for:
            standing.failures += began >= standing.rests_until
            longest = self._pool.longest_rest
            pause = max(delay_after(standing.failures, self._pool.rest, longest), min(asked_for or 0, longest))
            standing.rests_until = max(standing.rests_until, now + pause)
