"""Requests to SQS about a queue by our name for it; also a queue that was deleted is looked up, and asked, again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from itertools import islice
from typing import Any, Final

from tracelake.adapters.aws.service import AwsRefusal, AwsService
from tracelake.adapters.sqs.messages import Entry, Received, received, requests_of, whole_seconds
from tracelake.adapters.sqs.names import MISSING, SqsNames
from tracelake.errors import QueueUnavailable
from tracelake.runtime.retry import delays

AT_ONCE: Final = 8
"""Requests of one batch that are sent at the same time."""
TRIES: Final = 6
"""Of an entry that SQS failed to handle, in a request that it answered."""
SYSTEM_ATTRIBUTES: Final = (
    "ApproximateReceiveCount",
    "ApproximateFirstReceiveTimestamp",
    "SentTimestamp",
    "MessageGroupId",
)


class SqsRequests:
    def __init__(self, sqs: AwsService, names: SqsNames) -> None:
        self._sqs, self.names = sqs, names

    async def call(
        self, queue: str, operation: str, *, dead: bool = False, waits: float = 0.0, **parameters: Any
    ) -> dict[str, Any]:
        """`dead`: of the dead-letter queue."""
        for _ in range(2):
            found = await self.names.find(queue)
            url = found.dead_url if dead else found.url
            try:
                return await self._sqs.call(operation, handled=MISSING, waits=waits, QueueUrl=url, **parameters)
            except AwsRefusal:
                self.names.forget(queue)
        raise QueueUnavailable(
            f"the SQS queue {found.name!r} was deleted",
            where="queue.prefix",
            hint="create it again; tasks whose wake-up was lost with it are woken again",
        )

    async def receive(
        self, queue: str, count: int, visibility: timedelta, wait: int = 0, *, dead: bool = False
    ) -> list[Received]:
        answer = await self.call(
            queue,
            "receive_message",
            dead=dead,
            waits=wait,
            MaxNumberOfMessages=count,
            VisibilityTimeout=whole_seconds(visibility),
            WaitTimeSeconds=wait,
            MessageSystemAttributeNames=SYSTEM_ATTRIBUTES,
            MessageAttributeNames=["All"],
        )
        return [received(raw) for raw in answer.get("Messages", ())]

    async def send(self, queue: str, entries: Sequence[Entry]) -> None:
        done = await self.batch(queue, "send_message_batch", entries)
        if len(done) < len(entries):
            raise QueueUnavailable(
                f"SQS refuses {len(entries) - len(done)} of {len(entries)} messages",
                where="queue.prefix",
                hint="the queue's MaximumMessageSize must be 1048576",
            )

    async def batch(self, queue: str, operation: str, entries: Sequence[Entry], *, dead: bool = False) -> list[Entry]:
        """In as many requests as needed. Returns the entries that SQS accepted; those it never will are left out."""
        requests, accepted = list(requests_of(entries)), list[Entry]()
        for start in range(0, len(requests), AT_ONCE):
            sent = (self._one(queue, operation, batch, dead=dead) for batch in requests[start : start + AT_ONCE])
            for result in await asyncio.gather(*sent, return_exceptions=True):
                if isinstance(result, BaseException):
                    raise result
                accepted += result
        return accepted

    async def _one(self, queue: str, operation: str, entries: list[Entry], *, dead: bool) -> list[Entry]:
        left, accepted = entries, list[Entry]()
        for pause in islice(delays(), TRIES):
            answer = await self.call(queue, operation, dead=dead, Entries=left)
            failed = {entry["Id"]: entry for entry in answer.get("Failed", ())}
            accepted += [entry for entry in left if entry["Id"] not in failed]
            left = [entry for entry in left if entry["Id"] in failed and not failed[entry["Id"]].get("SenderFault")]
            if not left:
                return accepted
            await asyncio.sleep(pause)
        code = failed[left[0]["Id"]].get("Code")
        raise QueueUnavailable(
            f"SQS did not handle {len(left)} entries of a request: {code}", hint="it is repeated; see the health of AWS"
        )
