"""Whether every queue of SQS is there and may be read; a queue in Postgres is part of the databases."""

from __future__ import annotations

import asyncio

from tracelake.domain.flow.tiers import queue_names
from tracelake.errors import TraceError
from tracelake.lite.doctor.run import Finding
from tracelake.settings import Settings
from tracelake.wiring import open_queue


def examine_queue(settings: Settings) -> list[Finding]:
    return [asyncio.run(_queues(settings))] if settings.queue.backend == "sqs" else []


async def _queues(settings: Settings) -> Finding:
    names = queue_names(runtime.queue for runtime in settings.runtimes.values() if runtime.queue)
    try:
        async with open_queue(settings) as queue:
            for name in names:
                await queue.depth(name)
    except TraceError as wrong:
        return Finding("queue", ok=False, found=wrong.message, fix=wrong.hint)
    return Finding("queue", ok=True, found=f"{len(names)} queues of SQS in {settings.queue.region}")
