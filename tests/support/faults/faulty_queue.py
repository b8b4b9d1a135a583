"""A queue that does everything its port does not forbid, by a seed: doubles, shuffles, delays, loses the word of it.

It stands on the real queue. What it never does is what the port entries not to: a message whose `publish` returned is
delivered until it is acknowledged.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from tracelake.errors import DatabaseUnavailable
from tracelake.ports import DeadLetter, Delivery, MessageId, Outgoing, Queue, QueueDepth, Receipt


@dataclass(frozen=True)
class Faults:
    """Each as a chance, from 0 to 1."""

    seed: int
    lost: float = 0.0
    """A publish that fails, and nothing was published."""
    unconfirmed: float = 0.0
    """A publish that fails although everything was published."""
    doubled: float = 0.0
    delayed: float = 0.0
    dropped: float = 0.0
    """A delivery that the receiver never sees: it comes again when its visibility ends."""
    unacknowledged: float = 0.0
    """An acknowledgement that is answered and forgotten."""


@dataclass(frozen=True)
class FaultyQueue:
    inner: Queue
    faults: Faults
    chance: random.Random

    async def publish(self, queue: str, messages: Sequence[Outgoing]) -> None:
        self._maybe_fail(self.faults.lost, "lost before it was published")
        twice = [message for message in messages if self.chance.random() < self.faults.doubled]
        sent = [self._late(message) for message in (*messages, *twice)]
        self.chance.shuffle(sent)
        await self.inner.publish(queue, sent)
        self._maybe_fail(self.faults.unconfirmed, "published, but nobody was told")

    async def receive(
        self, queue: str, *, max_messages: int, visibility: timedelta, wait: timedelta = timedelta()
    ) -> list[Delivery]:
        found = await self.inner.receive(queue, max_messages=max_messages, visibility=visibility, wait=wait)
        seen = [delivery for delivery in found if self.chance.random() >= self.faults.dropped]
        self.chance.shuffle(seen)
        return seen

    async def ack(self, queue: str, receipts: Sequence[Receipt]) -> set[Receipt]:
        if self.chance.random() < self.faults.unacknowledged:
            return set(receipts)
        return await self.inner.ack(queue, receipts)

    async def extend(self, queue: str, receipts: Sequence[Receipt], visibility: timedelta) -> set[Receipt]:
        return await self.inner.extend(queue, receipts, visibility)

    async def release(self, queue: str, receipts: Sequence[Receipt], delay: timedelta = timedelta()) -> set[Receipt]:
        return await self.inner.release(queue, receipts, delay)

    async def depth(self, queue: str) -> QueueDepth:
        return await self.inner.depth(queue)

    async def dead_letters(self, queue: str, limit: int) -> list[DeadLetter]:
        return await self.inner.dead_letters(queue, limit)

    async def redrive(self, queue: str, ids: Sequence[MessageId] | None = None) -> int:
        return await self.inner.redrive(queue, ids)

    async def close(self) -> None:
        await self.inner.close()

    def _maybe_fail(self, chance: float, why: str) -> None:
        if self.chance.random() < chance:
            raise DatabaseUnavailable(why)

    def _late(self, message: Outgoing) -> Outgoing:
        if self.chance.random() >= self.faults.delayed:
            return message
        return Outgoing(message.body, timedelta(milliseconds=self.chance.randrange(1, 300)))


def disturbed(queue: Queue, faults: Faults | None) -> Queue:
    return queue if faults is None else FaultyQueue(queue, faults, random.Random(faults.seed))  # noqa: S311 - a seed
