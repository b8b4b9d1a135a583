"""Lists messages of the queues that were given up, and sends them again.

A queue carries messages of every organisation, so this is for those who run the system.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from tracelake.domain.flow.tiers import queue_names
from tracelake.errors import NotFound
from tracelake.ports import DeadLetter, MessageId, Queue
from tracelake.settings import RuntimeSettings
from tracelake.wire.user.dead_messages import DeadMessage, DeadMessages, DeadMessagesQuery, RedriveAnswer

MOST_CHARACTERS: Final = 2_000
"""A message has at most some hundred bytes, unless it is somebody else's."""


async def list_dead_messages(
    queue: Queue, runtimes: Mapping[str, RuntimeSettings], asked: DeadMessagesQuery
) -> DeadMessages:
    """The oldest first, queue by queue."""
    names = [asked.queue] if asked.queue else _names(runtimes)
    if asked.queue:
        _require_known(runtimes, asked.queue)
    found = await asyncio.gather(*(queue.dead_letters(name, asked.limit) for name in names))
    return DeadMessages(
        messages=[_shown(name, letter) for name, letters in zip(names, found, strict=True) for letter in letters]
    )


async def redrive(
    queue: Queue, runtimes: Mapping[str, RuntimeSettings], queue_name: str, ids: Sequence[str] | None
) -> RedriveAnswer:
    """Those that still fail are given up again."""
    _require_known(runtimes, queue_name)
    wanted = None if ids is None else [MessageId(name) for name in ids]
    return RedriveAnswer(redriven=await queue.redrive(queue_name, wanted))


def _require_known(runtimes: Mapping[str, RuntimeSettings], name: str) -> None:
    names = _names(runtimes)
    if name not in names:
        raise NotFound(f"there is no queue {name!r}", where="queue", hint=f"the queues are {', '.join(names)}")


def _names(runtimes: Mapping[str, RuntimeSettings]) -> list[str]:
    return queue_names(runtime.queue for runtime in runtimes.values() if runtime.queue)


def _shown(queue: str, letter: DeadLetter) -> DeadMessage:
    return DeadMessage(
        queue=queue,
        id=letter.id,
        deliveries=letter.receives,
        sent_at=letter.sent_at,
        died_at=letter.died_at,
        reason=letter.reason,
        size_bytes=len(letter.body),
        message=letter.body[: 4 * MOST_CHARACTERS].decode(errors="replace")[:MOST_CHARACTERS],
    )
