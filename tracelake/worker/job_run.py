"""A task in a job run of EMR Serverless: the driver of a Spark of its own, which keeps the lease and reports the end.

The Dispatcher has claimed the task and started the job. What the job reads first lies in the attempt's scratch folder.
It has the token of the task and no other: no token of a service, no database, no secret. Its keys of the object store,
and those of its executors, are the job's role cut to that token.
"""

from __future__ import annotations

import asyncio
import ssl
import tempfile
from collections.abc import Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tracelake.capability.log_context import task_fields
from tracelake.domain.access.object_names import ObjectName
from tracelake.errors import InvalidRequest
from tracelake.operators.api.context import Resources
from tracelake.ports import ObjectStore
from tracelake.runtime.http_client import AsyncClient
from tracelake.runtime.logs import log_fields
from tracelake.runtime.tls import client_context
from tracelake.spark.configuration import FIXED_SQL
from tracelake.wire.client import TaskClient
from tracelake.wire.task.lifecycle import Claimed, Invocation, TaskPayload
from tracelake.worker.run_claimed import ClaimedTasks
from tracelake.worker.run_task import Runner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CALL_SECONDS = 30


@dataclass(frozen=True)
class JobDocument:
    """What the Dispatcher has written for the job (`adapters/invoker_emr.py`)."""

    claimed: Claimed
    task_url: str
    ca: str | None
    """Certificates in PEM."""

    @classmethod
    def parse(cls, body: bytes) -> JobDocument:
        try:
            found: Mapping[str, Any] = msgspec.json.decode(body)
            invocation = msgspec.convert(found["task"], Invocation)
        except (msgspec.DecodeError, KeyError, TypeError) as wrong:
            raise InvalidRequest(f"this is no task of the Dispatcher: {wrong}", where="/task") from None
        return cls(_claimed(invocation), found["task_url"], found.get("ca"))


def run_job(place: str, objects: ObjectStore, spark: SparkSession) -> None:
    """Until the task has ended, or its lease is lost. `place`: where its document lies."""
    document = JobDocument.parse(objects.get(ObjectName.parse(place)))
    for key, value in FIXED_SQL.items():
        spark.conf.set(key, value)
    runner = Runner(objects, Resources(), spark)
    with log_fields(**task_fields(document.claimed)), ThreadPoolExecutor(2, "task") as threads:
        asyncio.run(_run(document, runner, _trusted(document.ca), threads))


async def _run(document: JobDocument, runner: Runner, verify: ssl.SSLContext, threads: Executor) -> None:
    async with AsyncClient(base_url=document.task_url, verify=verify, timeout=CALL_SECONDS) as http:
        await ClaimedTasks(TaskClient(http), runner).run(document.claimed, threads)


def _trusted(ca: str | None) -> ssl.SSLContext:
    if ca is None:
        return client_context(None)
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
        file.write(ca)
        file.flush()
        return client_context(Path(file.name))


def _claimed(invocation: Invocation) -> Claimed:
    fields = {name: getattr(invocation, name) for name in TaskPayload.__struct_fields__}
    return Claimed(
        invocation.attempt,
        invocation.lease_token,
        invocation.lease_expires_at,
        invocation.capability_token,
        TaskPayload(**fields),
    )
