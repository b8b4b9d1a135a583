"""Settings to ports: the only place that knows which adapter stands behind which port."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from trace_platform.adapters.objects_disk import DiskObjects
from trace_platform.adapters.queue_pg import PgQueue
from trace_platform.adapters.signer_pem import PemSigner
from trace_platform.ports import ObjectStore, Queue, Signer
from trace_platform.settings import Settings
from trace_platform.store.db import required


@asynccontextmanager
async def open_queue(settings: Settings) -> AsyncIterator[Queue]:
    queue = PgQueue(required(settings.queue.dsn, "queue.dsn"))
    try:
        yield queue
    finally:
        await queue.close()


def make_objects(settings: Settings) -> ObjectStore:
    return DiskObjects(settings.object_folder)


def make_signer(settings: Settings) -> Signer:
    return PemSigner(settings.task_key_folder)
