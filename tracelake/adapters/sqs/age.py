"""How long the oldest message of a queue has waited: SQS sends that to CloudWatch only, once a minute."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Final

from tracelake.adapters.aws.service import AwsService

PERIOD: Final = timedelta(minutes=1)
LOOK_BACK: Final = timedelta(minutes=5)
"""SQS sends the metrics of a queue within minutes."""


class OldestAge:
    def __init__(self, cloudwatch: AwsService) -> None:
        self._cloudwatch = cloudwatch
        self._known: dict[str, tuple[float, float]] = {}
        """By queue: until when it is asked for no more, and the age."""

    async def of(self, name: str) -> float:
        """Seconds, of a minute ago or so; 0 where CloudWatch has no figure of this queue."""
        now = asyncio.get_running_loop().time()
        until, age = self._known.get(name, (0.0, 0.0))
        if now >= until:
            age = await self._ask(name)
            self._known[name] = now + PERIOD.total_seconds(), age
        return age

    async def _ask(self, name: str) -> float:
        now = datetime.now(UTC)
        answer = await self._cloudwatch.call(
            "get_metric_statistics",
            Namespace="AWS/SQS",
            MetricName="ApproximateAgeOfOldestMessage",
            Dimensions=[{"Name": "QueueName", "Value": name}],
            StartTime=now - LOOK_BACK,
            EndTime=now + PERIOD,
            Period=int(PERIOD.total_seconds()),
            Statistics=["Maximum"],
        )
        newest = max(answer.get("Datapoints", ()), key=lambda point: point["Timestamp"], default=None)
        return float(newest["Maximum"]) if newest else 0.0
