"""Settings to ports: the only place that knows which adapter stands behind which port."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from trace_platform.adapters.credentials_mounts import Mounts
from trace_platform.adapters.credentials_sts import StsMinter
from trace_platform.adapters.invoker_http import HttpInvoker
from trace_platform.adapters.objects_disk import DiskObjects
from trace_platform.adapters.objects_s3 import S3Objects
from trace_platform.adapters.queue_pg import PgQueue
from trace_platform.adapters.signer_pem import PemSigner
from trace_platform.contracts import SessionCredentials
from trace_platform.ports import CredentialMinter, Invoker, ObjectStore, Queue, Signer
from trace_platform.settings import ObjectSettings, Settings
from trace_platform.store.db import required
from trace_platform.tls import client_context


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


def session_objects(keys: SessionCredentials) -> ObjectStore:
    """The S3 store with the rights of a task."""
    return S3Objects(keys.region, keys.endpoint, keys.access_key_id, keys.secret_access_key, keys.session_token)


@asynccontextmanager
async def open_invoker(settings: Settings) -> AsyncIterator[Invoker | None]:
    """None: nobody runs functions here."""
    url, token = settings.udf.invoke_url, settings.udf.invoke_token
    if url is None or token is None:
        yield None
        return
    invoker = HttpInvoker(url, token.get_secret_value(), client_context(settings.tls.ca))
    try:
        yield invoker
    finally:
        await invoker.close()


def make_minter(settings: Settings) -> CredentialMinter | None:
    if settings.objects.backend == "disk":
        return Mounts()
    return StsMinter(settings.credentials) if settings.credentials.role_arn else None


def make_signer(settings: Settings) -> Signer:
    return PemSigner(settings.task_key_folder)
