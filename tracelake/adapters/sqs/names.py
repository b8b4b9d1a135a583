"""The queues of SQS behind our names: found once, created where that is allowed, each with its dead-letter queue."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Final

from tracelake.adapters.aws.service import AwsRefusal, AwsService
from tracelake.errors import QueueUnavailable
from tracelake.settings import QueueSettings

MISSING: Final = frozenset({"QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue"})
TAKEN: Final = frozenset({"QueueNameExists", "QueueAlreadyExists"})
DELETED: Final = frozenset({"QueueDeletedRecently", "AWS.SimpleQueueService.QueueDeletedRecently"})
DEAD: Final = "-dead"
KEPT_SECONDS: Final = 14 * 24 * 3600
"""The longest that SQS keeps a message."""
LARGEST_BYTES: Final = 1024 * 1024
"""Of a message, and of all messages of one request."""


@dataclass(frozen=True)
class FoundQueue:
    """A queue as SQS knows it."""

    name: str
    url: str
    dead_url: str
    max_receives: int


class SqsNames:
    def __init__(self, sqs: AwsService, settings: QueueSettings, max_receives: int) -> None:
        self._sqs, self._settings, self._max_receives = sqs, settings, max_receives
        self._found: dict[str, FoundQueue] = {}
        self._finding = asyncio.Lock()

    async def find(self, queue: str) -> FoundQueue:
        if queue not in self._found:
            async with self._finding:
                if queue not in self._found:
                    self._found[queue] = await self._look_up(self._settings.prefix + queue)
        return self._found[queue]

    def forget(self, queue: str) -> None:
        """It was deleted, perhaps to be created anew."""
        self._found.pop(queue, None)

    async def _look_up(self, name: str) -> FoundQueue:
        url = await self._url(name)
        if url is None:
            url = await self._create(name)
        answer = await self._sqs.call("get_queue_attributes", QueueUrl=url, AttributeNames=["RedrivePolicy"])
        policy = json.loads(answer.get("Attributes", {}).get("RedrivePolicy", "{}"))
        dead = str(policy.get("deadLetterTargetArn", "")).rpartition(":")[2]
        dead_url = await self._url(dead) if dead else None
        if dead_url is None:
            raise self._without_dead_letters(name)
        return FoundQueue(name, url, dead_url, int(policy["maxReceiveCount"]))

    async def _url(self, name: str) -> str | None:
        try:
            answer = await self._sqs.call("get_queue_url", handled=MISSING, QueueName=name)
        except AwsRefusal:
            return None
        return str(answer["QueueUrl"])

    async def _create(self, name: str) -> str:
        if not self._settings.create:
            raise QueueUnavailable(
                f"there is no SQS queue {name!r} in {self._settings.region}",
                where="queue.prefix",
                hint=f"create it with the dead-letter queue {name + DEAD!r}, or set queue.create",
            )
        kept = {"MessageRetentionPeriod": str(KEPT_SECONDS), "MaximumMessageSize": str(LARGEST_BYTES)}
        dead = await self._ensure(name + DEAD, kept)
        answer = await self._sqs.call("get_queue_attributes", QueueUrl=dead, AttributeNames=["QueueArn"])
        arn = answer["Attributes"]["QueueArn"]
        policy = {"deadLetterTargetArn": arn, "maxReceiveCount": str(self._max_receives)}
        return await self._ensure(name, kept | {"RedrivePolicy": json.dumps(policy)})

    async def _ensure(self, name: str, attributes: dict[str, str]) -> str:
        """Another process may have created it with other attributes: then those count."""
        handled = TAKEN | DELETED
        try:
            answer = await self._sqs.call("create_queue", handled=handled, QueueName=name, Attributes=attributes)
        except AwsRefusal:
            url = await self._url(name)
            if url is None:
                raise self._deleted(name) from None
            return url
        return str(answer["QueueUrl"])

    def _deleted(self, name: str) -> QueueUnavailable:
        return QueueUnavailable(
            f"the SQS queue {name!r} was deleted a moment ago",
            where="queue.prefix",
            hint="SQS allows it to be created again after 60 seconds; until then calls are repeated",
        )

    def _without_dead_letters(self, name: str) -> QueueUnavailable:
        return QueueUnavailable(
            f"the SQS queue {name!r} has no dead-letter queue, so a message that always fails would never end",
            where="queue.prefix",
            hint=f"set its RedrivePolicy: deadLetterTargetArn of {name + DEAD!r}, and maxReceiveCount",
        )
