"""How workers share the limits of a pool of nodes: each has a share, and all shares together are the limit at most.

Pure functions of what all workers hold and want. A worker lowers its use first and says so; only then others get what
it gave up. So an answer that is lost, or comes late, never lets two workers use the same part.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PoolLimit:
    """Of a pool: requests under way at once, and calls a second to each node (None: no limit)."""

    in_flight: int
    rate: float | None = None


@dataclass(frozen=True, slots=True)
class Holding:
    """What a worker may use until its lease expires."""

    worker: str
    share: PoolLimit
    wanted: int
    """The most requests that it had under way or waiting at once, of late."""
    limit: PoolLimit
    """That of the pool, as its settings have it."""


@dataclass(frozen=True, slots=True)
class Grant:
    recorded: PoolLimit
    """What nobody else gets."""
    use: PoolLimit
    """What the worker uses from now on: less than is recorded, until it has said so."""
    target: int
    """The share that it gets, when the others have given it up."""


def grant(asks: Holding, own: PoolLimit | None, others: Sequence[Holding], turn: int) -> Grant:
    """The next share of a worker. `asks.share`: what it uses; `own`: what is recorded, unless that has expired."""
    limit = _smallest([asks.limit, *(other.limit for other in others)])
    wanted = {asks.worker: asks.wanted} | {other.worker: other.wanted for other in others}
    target = divide(limit.in_flight, wanted, turn)[asks.worker]
    free = limit.in_flight - sum(other.share.in_flight for other in others)
    held = min(asks.share.in_flight, own.in_flight) if own else 0
    recorded = max(held, min(target, free), 0)
    rate, rate_use = _rate(limit, target, asks.share.rate, own, others)
    return Grant(PoolLimit(recorded, rate), PoolLimit(min(recorded, target), rate_use), target)


def divide(limit: int, wanted: Mapping[str, int], turn: int) -> dict[str, int]:
    """Everyone gets what it wants, up to an equal part; what is left is divided equally.

    Where less than one is left for each, those who get one change with `turn`: nobody is left out for ever.
    """
    shares, left = dict.fromkeys(wanted, 0), limit
    open_workers = sorted(wanted)
    while open_workers:
        part = left // len(open_workers)
        content = [worker for worker in open_workers if wanted[worker] <= part]
        if not content:
            break
        for worker in content:
            shares[worker] = wanted[worker]
        left -= sum(wanted[worker] for worker in content)
        open_workers = [worker for worker in open_workers if worker not in content]
    receivers = open_workers or sorted(wanted)
    for worker, part in zip(_rotated(receivers, turn), _parts(left, len(receivers)), strict=True):
        shares[worker] += part
    return shares


def _rate(
    limit: PoolLimit, target: int, used: float | None, own: PoolLimit | None, others: Sequence[Holding]
) -> tuple[float | None, float | None]:
    """Calls a second in proportion to requests under way: what is recorded, and what is used."""
    if limit.rate is None:
        return None, None
    wanted = limit.rate * target / limit.in_flight
    free = limit.rate - sum(_or(other.share.rate, limit.rate) for other in others)
    held = min(_or(used, limit.rate), _or(own.rate, limit.rate)) if own else 0.0
    recorded = max(held, min(wanted, free), 0.0)
    return recorded, min(recorded, wanted)


def _or(rate: float | None, otherwise: float) -> float:
    return otherwise if rate is None else rate


def _smallest(limits: Iterable[PoolLimit]) -> PoolLimit:
    """Workers with different settings, as while they are changed: the lower one counts."""
    known = list(limits)
    rates = [limit.rate for limit in known if limit.rate is not None]
    return PoolLimit(min(limit.in_flight for limit in known), min(rates, default=None))


def _rotated(workers: Sequence[str], turn: int) -> list[str]:
    first = turn % len(workers)
    return [*workers[first:], *workers[:first]]


def _parts(total: int, count: int) -> list[int]:
    return [total // count + (place < total % count) for place in range(count)]
