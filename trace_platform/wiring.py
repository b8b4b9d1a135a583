"""Settings to ports: the only place that knows which adapter stands behind which port."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from trace_platform.adapters.credentials_mounts import Mounts
from trace_platform.adapters.credentials_sts import StsMinter
from trace_platform.adapters.objects_disk import DiskObjects
from trace_platform.adapters.objects_s3 import S3Objects
from trace_platform.adapters.queue_pg import PgQueue
from trace_platform.adapters.signer_pem import PemSigner
from trace_platform.ports import CredentialMinter, ObjectStore, Queue, Signer
from trace_platform.settings import ObjectSettings, Settings
from trace_platform.store.db import required


@asynccontextmanager
async def open_queue(settings: Settings) -> AsyncIterator[Queue]:
    queue = PgQueue(required(settings.queue.dsn, "queue.dsn"))
    try:
        yield queue
    finally:
        await queue.close()


def make_objects(settings: Settings) -> ObjectStore:
    if settings.objects.backend == "disk":
        return DiskObjects(settings.object_folder)
    return s3_objects(settings.objects)


def s3_objects(places: ObjectSettings) -> ObjectStore:
    return S3Objects.of(places)


def make_minter(settings: Settings) -> CredentialMinter | None:
    if settings.objects.backend == "disk":
        return Mounts()
    return StsMinter(settings.credentials) if settings.credentials.role_arn else None


def make_signer(settings: Settings) -> Signer:
    return PemSigner(settings.task_key_folder)
