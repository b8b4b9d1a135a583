"""Backends that fail on purpose: a queue, object stores, a small disk.

The queue wraps the real one, and keeps the guarantee of the port: a message whose `publish` returned is delivered until
it is acknowledged.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import random
import signal
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import pytest

from tracelake.adapters.objects_disk import DiskObjects
from tracelake.domain.access.object_names import ObjectName
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
        self._maybe_fail(self.faults.unconfirmed, "published, but not confirmed")

    async def receive(
        self,
        queue: str | Mapping[str, int],
        *,
        max_messages: int,
        visibility: timedelta,
        wait: timedelta = timedelta(),
        end_wait: asyncio.Event | None = None,
    ) -> list[Delivery]:
        options = {"max_messages": max_messages, "visibility": visibility, "wait": wait, "end_wait": end_wait}
        found = await self.inner.receive(queue, **options)  # type: ignore[arg-type]
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
        return replace(message, delay=timedelta(milliseconds=self.chance.randrange(1, 300)))


def disturbed(queue: Queue, faults: Faults | None) -> Queue:
    return queue if faults is None else FaultyQueue(queue, faults, random.Random(faults.seed))  # noqa: S311 - a seed


POISON = "poison.jsonl"
DEADLY = "deadly.jsonl"


class DeadlyObjects(DiskObjects):
    """Whoever reads the one object is killed, as by a kernel that has no memory left."""

    def get(self, name: ObjectName) -> bytes:
        if name.name == DEADLY:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().get(name)


class FaultyObjects(DiskObjects):
    @property
    def fails(self) -> Path:
        """It fails while this is there."""
        return self.root / "fails"

    def get(self, name: ObjectName) -> bytes:
        if name.name == POISON and self.fails.exists():
            raise ZeroDivisionError("a fault of ours")
        return super().get(name)


DETACH = 2
"""`MNT_DETACH`: a server may still have a file open."""
NEEDS = (
    "it mounts a small file system: run it as root, or below"
    " `unshare --map-current-user --mount --keep-caps make test ARGS=...`"
)


@contextmanager
def small_disk(megabytes: int) -> Iterator[Path]:
    """A tmpfs of this size; the test is skipped where nobody may mount one."""
    place = Path(tempfile.mkdtemp(prefix="trace-test-disk-"))
    libc = ctypes.CDLL(None, use_errno=True)  # the `mount` command asks who we are, and not what we may
    if libc.mount(b"none", bytes(place), b"tmpfs", 0, f"size={megabytes}m".encode()):
        place.rmdir()
        pytest.skip(f"{NEEDS} ({os.strerror(ctypes.get_errno())})")
    place.chmod(0o777)
    try:
        yield place
    finally:
        if libc.umount2(bytes(place), DETACH):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(place))
        place.rmdir()


def fill(disk: Path, *files: Path) -> Path:
    """Leaves no room, neither in the last page of these files; removing the file that it gives makes room again."""
    ballast = disk / "ballast"
    for file in (ballast, *files):
        _grow(file)
    return ballast


def _grow(file: Path) -> None:
    with file.open("ab", buffering=0) as opened:
        try:
            while True:
                opened.write(b"0" * 65536)
        except OSError:
            return
