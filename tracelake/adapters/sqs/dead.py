"""Dead letters of SQS: listed without being deleted, and sent again.

SQS has no way to look at a message. A dead letter is received and given back; its queue has no limit of deliveries.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from datetime import timedelta
from typing import Final
from uuid import uuid4

from tracelake.adapters.queue_limits import LIST_LIMIT
from tracelake.adapters.sqs.messages import BATCH, Received, entry_again
from tracelake.adapters.sqs.requests import SqsRequests
from tracelake.ports import DeadLetter, MessageId

HIDDEN: Final = timedelta(minutes=1)
"""How long a dead letter is hidden from others that look, should this process end meanwhile."""
WAIT_SECONDS: Final = 1
"""A request that waits asks every server of SQS, one that does not only some of them."""


class DeadLetters:
    def __init__(self, requests: SqsRequests) -> None:
        self._requests = requests

    async def look_at(self, queue: str, limit: int) -> list[DeadLetter]:
        """The oldest first; SQS gives them in no order, so all are received."""
        looked_at: list[Received] = []
        try:
            async for batch in self._batches(queue):
                looked_at += batch
        finally:
            await self._give_back(queue, looked_at)
        receives = (await self._requests.names.find(queue)).max_receives
        oldest = sorted(looked_at, key=lambda message: (message.sent_at, message.id))[:limit]
        return [_letter(message, receives) for message in oldest]

    async def redrive(self, queue: str, ids: Collection[MessageId] | None) -> int:
        """One that dies again meanwhile is left: it bears the name of this call."""
        this, moved, left = uuid4().hex, 0, list[Received]()
        try:
            async for batch in self._batches(queue):
                again = [
                    message for message in batch if message.redriven_by != this and (ids is None or message.id in ids)
                ]
                left += [message for message in batch if message not in again]
                await self._requests.send(queue, [entry_again(message, this) for message in again])
                await self._delete(queue, again)
                moved += len(again)
        finally:
            await self._give_back(queue, left)
        return moved

    async def _batches(self, queue: str) -> AsyncIterator[list[Received]]:
        """Until there are no more, or some come that were hidden for too short."""
        seen: set[MessageId] = set()
        while len(seen) < LIST_LIMIT:
            batch = await self._requests.receive(queue, BATCH, HIDDEN, WAIT_SECONDS, dead=True)
            if not batch or not seen.isdisjoint(message.id for message in batch):
                return
            seen.update(message.id for message in batch)
            yield batch

    async def _delete(self, queue: str, messages: Sequence[Received]) -> None:
        entries = [{"ReceiptHandle": message.receipt} for message in messages]
        await self._requests.batch(queue, "delete_message_batch", entries, dead=True)

    async def _give_back(self, queue: str, messages: Sequence[Received]) -> None:
        entries = [{"ReceiptHandle": message.receipt, "VisibilityTimeout": 0} for message in messages]
        await self._requests.batch(queue, "change_message_visibility_batch", entries, dead=True)


def _letter(message: Received, receives: int) -> DeadLetter:
    return DeadLetter(
        id=message.id,
        body=message.body,
        receives=receives,
        sent_at=message.sent_at,
        died_at=message.first_received_at,
        reason=f"delivered {receives} times without an acknowledgement",
    )
