"""From settings to a running process: which adapter serves which port, and which ports each process gets.

The only module that knows adapters. It imports each where it is chosen: a process loads what it uses and no more, and
`trace up` starts its processes with their settings on standard input, without loading the command line.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Final, NoReturn

from tracelake.runtime.process import Process, hide_memory, run_process
from tracelake.settings import (
    SANDBOXES,
    ObjectSettings,
    SecretReference,
    Settings,
    references_in,
    settings_from_document,
    with_values,
)

if TYPE_CHECKING:
    from tracelake.adapters.aws.identity import AwsIdentity
    from tracelake.adapters.invoker_emr import EmrJobRunner, JobPlace
    from tracelake.adapters.invoker_http import HttpInvoker
    from tracelake.adapters.invoker_lambda import LambdaInvoker
    from tracelake.adapters.secrets_manager import SecretsManager
    from tracelake.adapters.signer_kms import KmsSigner
    from tracelake.adapters.signer_kms_sealed import KmsSealedSigner
    from tracelake.ports import CredentialMinter, FigureStore, Invoker, ObjectStore, Queue, Signer
    from tracelake.wire.client import DispatcherClient, TaskClient
    from tracelake.wire.internal.identity import SessionCredentials
    from tracelake.worker.run_udf import RunsFunctions
    from tracelake.worker.task_keys import OpenStore

FOLDERS: Final = {"runner": "udf"}
"""Processes whose folder has another name."""

WITH_PORTS: Final = frozenset({"dispatcher", "worker", "sink", "query", "runner"})


def run_from_stdin(name: str) -> NoReturn:
    """Runs a process with the settings on standard input, and none from elsewhere."""
    run_with(name, settings_from_document(sys.stdin.read()))


def run_with(name: str, settings: Settings) -> NoReturn:
    if name == "dispatcher":
        hide_memory()  # it alone holds the DSN of the state database: other processes of this user must not read it
    sys.exit(run_process(name, with_secrets(settings), _main_of(name)))


def with_secrets(settings: Settings, *groups: str) -> Settings:
    """The settings with values in the place of references; where groups are named, in these alone."""
    found = references_in(settings)
    wanted = {path: found[path] for path in found if not groups or path.partition(".")[0] in groups}
    return with_values(settings, asyncio.run(_fetch(settings, wanted))) if wanted else settings


async def _fetch(settings: Settings, wanted: dict[str, SecretReference]) -> dict[str, str]:
    async with open_secrets(settings) as secrets:
        return {path: await secrets.value_of(path, reference) for path, reference in wanted.items()}


@asynccontextmanager
async def open_secrets(settings: Settings) -> AsyncIterator[SecretsManager]:
    from tracelake.adapters.secrets_manager import SecretsManager

    secrets = SecretsManager(settings.secrets_manager)
    try:
        yield secrets
    finally:
        await secrets.close()


@asynccontextmanager
async def open_identity(settings: Settings) -> AsyncIterator[AwsIdentity]:
    from tracelake.adapters.aws.identity import AwsIdentity

    identity = AwsIdentity(settings.aws)
    try:
        yield identity
    finally:
        await identity.close()


def _main_of(name: str) -> Callable[[Process], Awaitable[None]]:
    """The main function of a process, given the ports that its settings choose."""
    main: Callable[..., Awaitable[None]] = import_module(f"tracelake.{FOLDERS.get(name, name)}.process").main

    async def with_ports(process: Process) -> None:
        settings = process.settings
        if name == "query":
            await main(process, make_objects(settings))
        elif name == "runner":
            await main(process, make_objects(settings), session_objects, _take_udf_tasks)
        elif name == "worker":
            async with open_queue(settings) as queue:
                await main(process, queue, make_objects(settings), task_objects(settings))
        elif name == "dispatcher":
            async with (
                open_queue(settings) as queue,
                open_signer(settings) as signer,
                open_invoker(settings) as invoker,
                open_figures(settings) as figures,
                open_job_runners(settings) as runners,
            ):
                stores = make_objects(settings), make_minter(settings)
                await main(process, queue, signer, *stores, invoker=invoker, figures=figures, job_runners=runners)
        else:
            async with open_queue(settings) as queue:
                await main(process, queue, make_objects(settings))

    return with_ports if name in WITH_PORTS else main


async def _take_udf_tasks(
    process: Process, functions: RunsFunctions, dispatcher: DispatcherClient, tasks: TaskClient
) -> None:
    """Runs tasks of `ecs_udf` until the process is to stop: the workers' wrapper, with sandboxes, not Spark."""
    from tracelake.worker.run_udf import SandboxRunner
    from tracelake.worker.wrapper import Wrapper

    settings = process.settings
    name = settings.runtimes[SANDBOXES].queue if SANDBOXES in settings.runtimes else None
    if name is None or not settings.queue.is_set:
        return
    async with open_queue(settings) as queue:
        wrapper = Wrapper(
            queue=queue,
            queue_name=name,
            dispatcher=dispatcher,
            tasks=tasks,
            runner=SandboxRunner(functions, tasks, asyncio.get_running_loop()),
            worker_id=f"runner {socket.gethostname()}:{os.getpid()}",
            concurrency=settings.udf.tasks,
            metrics=process.metrics,
            normal_share=settings.flow.normal_share,
            reserved=settings.flow.reserved_slots,
        )
        await wrapper.work(process.stop)


@asynccontextmanager
async def open_queue(settings: Settings) -> AsyncIterator[Queue]:
    queue = _new_queue(settings)
    try:
        yield queue
    finally:
        await queue.close()


def _new_queue(settings: Settings) -> Queue:
    if settings.queue.backend == "sqs":
        from tracelake.adapters.sqs.queue import SqsQueue

        return SqsQueue(settings.queue)
    from tracelake.adapters.pg.queue import PgQueue
    from tracelake.store.db import required

    return PgQueue(required(settings.queue.dsn, "queue.dsn"))


def make_objects(settings: Settings) -> ObjectStore:
    if settings.objects.backend != "disk":
        return s3_objects(settings.objects)
    from tracelake.adapters.objects_disk import DiskObjects

    return DiskObjects(settings.object_folder)


def s3_objects(settings: ObjectSettings) -> ObjectStore:
    from tracelake.adapters.objects_s3 import S3Objects

    return S3Objects.of(settings)


def session_objects(keys: SessionCredentials) -> ObjectStore:
    """The S3 store with the rights of a task."""
    from tracelake.adapters.objects_s3 import S3Objects

    return S3Objects(keys.region, keys.endpoint, keys.access_key_id, keys.secret_access_key, keys.session_token)


def task_objects(settings: Settings) -> OpenStore | None:
    """The S3 store of a worker's tasks, of what returns their keys; None: they use the worker's own."""
    if not settings.worker.task_credentials:
        return None
    from tracelake.adapters.objects_s3 import S3Objects

    return lambda keys: S3Objects(settings.objects.region, settings.objects.endpoint, keys=keys)


@asynccontextmanager
async def open_job_runners(settings: Settings) -> AsyncIterator[Mapping[str, EmrJobRunner]]:
    """By runtime: those that have an application of EMR Serverless."""
    from tracelake.adapters.invoker_emr import JobPlace

    names = [name for name, runtime in settings.runtimes.items() if runtime.application]
    runners = {name: make_job_runner(settings, name, JobPlace.of(settings)) for name in names}
    try:
        yield runners
    finally:
        for runner in runners.values():
            await runner.close()


def make_job_runner(settings: Settings, runtime: str, place: JobPlace | None = None) -> EmrJobRunner:
    """`place`: None where nothing is started, and the application is only examined."""
    from tracelake.adapters.invoker_emr import EmrJobRunner

    application = settings.runtimes[runtime].application
    assert application is not None  # noqa: S101 - it is called for those that have one
    return EmrJobRunner(settings.emr, application, make_objects(settings), place)


def run_job_from(place: str, region: str, endpoint: str | None = None) -> None:
    """In a job run: the task that the Dispatcher has written to `place`, on the Spark of the job."""
    from pyspark.sql import SparkSession

    from tracelake.adapters.objects_s3 import S3Objects
    from tracelake.runtime.logs import configure_logging
    from tracelake.settings import LogSettings
    from tracelake.worker.job_run import run_job

    configure_logging("job run", LogSettings(), str)
    run_job(place, S3Objects(region, endpoint), SparkSession.builder.getOrCreate())


@asynccontextmanager
async def open_invoker(settings: Settings) -> AsyncIterator[Invoker | None]:
    """None: no runner of functions is set up."""
    invoker = _new_invoker(settings)
    try:
        yield invoker
    finally:
        if invoker is not None:
            await invoker.close()


def _new_invoker(settings: Settings) -> HttpInvoker | LambdaInvoker | None:
    url, token = settings.udf.invoke_url, settings.udf.invoke_token
    if settings.udf.invoker == "lambda":
        return make_lambda(settings)
    if url is None or token is None:
        return None
    from tracelake.adapters.invoker_http import HttpInvoker
    from tracelake.runtime.tls import client_context

    return HttpInvoker(url, token.get_secret_value(), client_context(settings.tls.ca))


def make_lambda(settings: Settings) -> LambdaInvoker:
    from tracelake.adapters.invoker_lambda import LambdaInvoker

    return LambdaInvoker(settings.udf, calls=settings.dispatcher.functions)


def make_minter(settings: Settings) -> CredentialMinter | None:
    if settings.objects.backend == "disk":
        from tracelake.adapters.credentials_mounts import Mounts

        return Mounts()
    from tracelake.adapters.credentials_sts import StsMinter

    return StsMinter(settings.credentials) if settings.credentials.role_arn else None


@asynccontextmanager
async def open_figures(settings: Settings) -> AsyncIterator[FigureStore | None]:
    """None: gauges are sent nowhere."""
    if settings.metrics.cloudwatch_namespace is None:
        yield None
        return
    from tracelake.adapters.cloudwatch import CloudWatch

    figures = CloudWatch(settings.metrics)
    try:
        yield figures
    finally:
        await figures.close()


@asynccontextmanager
async def open_signer(settings: Settings) -> AsyncIterator[Signer]:
    if settings.tokens.signer == "pem":
        from tracelake.adapters.signer_pem import PemSigner

        yield PemSigner(settings.task_key_folder)
        return
    signer = _signer_of_kms(settings)
    try:
        yield signer
    finally:
        await signer.close()


def _signer_of_kms(settings: Settings) -> KmsSigner | KmsSealedSigner:
    if settings.tokens.signer == "kms_sealed":
        from tracelake.adapters.signer_kms_sealed import KmsSealedSigner

        return KmsSealedSigner(settings.tokens, make_objects(settings), settings.objects.bucket)
    from tracelake.adapters.signer_kms import KmsSigner

    return KmsSigner(settings.tokens)
