"""`trace runner`: runs untrusted code in sandboxes, behind a listener with Lambda's Invoke API.

It reaches the task API (for its sandboxes), the internal API for the public keys of tokens, and the object store. Tasks
of `ecs_udf` are taken from their queue by the coroutine that is passed as `beside`.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import aiohttp
import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tracelake.capability.verifier import Verifier
from tracelake.errors import BadInput, Refused, SetupError, Unauthenticated
from tracelake.ports import ObjectStore, Places
from tracelake.runtime.http_client import AsyncClient
from tracelake.runtime.listeners import (
    Listener,
    bearer,
    cancel_on_disconnect,
    json_response,
    listener_app,
    open_listeners,
)
from tracelake.runtime.process import Process, wait_for_service
from tracelake.runtime.tls import client_context, public_context
from tracelake.sandbox.bubblewrap import Isolation, choose_isolation
from tracelake.sandbox.contents import write_etc
from tracelake.settings import Settings, UdfSettings
from tracelake.udf.fetch_bundle import Bundles
from tracelake.udf.invoke import Functions
from tracelake.udf.object_stores import Stores
from tracelake.udf.pool import Pool
from tracelake.udf.runtime_api import FunctionError, Result
from tracelake.udf.sandbox_host import ObjectAccess, SandboxContext, open_sandbox_host, required_url
from tracelake.wire.calls.read_call import read_message
from tracelake.wire.client import DispatcherClient, TaskClient, dispatcher_client, task_client
from tracelake.wire.internal.identity import SessionCredentials
from tracelake.wire.service.calls import DISPATCHER
from tracelake.wire.service.gate import ServiceCaller, guarded
from tracelake.wire.task.lifecycle import Invocation

log = structlog.get_logger()

PATH: Final = "/2015-03-31/functions/udf/invocations"
PLACES: Final = "/places"
MOST_BYTES: Final = 6 * 1024 * 1024
SOCKET_PATH: Final = 100
"""A unix socket's path has at most 107 bytes; the file name needs a few."""
DRAIN_SECONDS: Final = 20.0
LISTENER_CONNECTIONS: Final = 64

MakeStore = Callable[[SessionCredentials], ObjectStore]


async def main(process: Process, objects: ObjectStore, made_for: MakeStore, beside: Beside) -> None:
    settings = process.settings
    async with (
        dispatcher_client(settings) as dispatcher,
        task_client(settings) as tasks,
        _able(settings, dispatcher, tasks, Stores(settings, objects, tasks, made_for)) as (functions, status),
        open_listeners(
            [runner_api(functions, settings.udf)], settings.tls, metrics=process.metrics, limits=settings.http
        ),
    ):
        await wait_for_service(process, "the Dispatcher", dispatcher.ready)
        process.ready(status)
        await beside(process, functions, dispatcher, tasks)
        await process.stop.wait()


@dataclass(frozen=True)
class Refusing:
    """Replaces Functions where there is no isolation: every task fails with the reason."""

    because: SetupError
    settings: UdfSettings

    def places(self) -> Places:
        """As with isolation: each task fails at once with the reason."""
        return Places(self.settings.sandboxes, self.settings.per_org)

    async def run(
        self, invocation: Invocation, more: Mapping[str, Any] | None = None, *, alone: bool = False
    ) -> Result:
        del invocation, more, alone
        raise self.because


Beside = Callable[[Process, Functions | Refusing, DispatcherClient, TaskClient], Awaitable[None]]
"""Runs beside the listener until the process stops."""


@asynccontextmanager
async def _able(
    settings: Settings, dispatcher: DispatcherClient, tasks: TaskClient, stores: Stores
) -> AsyncIterator[tuple[Functions | Refusing, str]]:
    """Functions and a status text. Without isolation the process starts too, and refuses tasks."""
    try:
        isolation = await asyncio.to_thread(choose_isolation, unsafe=settings.udf.unsafe)
    except SetupError as missing:
        log.error("untrusted code is refused", **missing.as_dict())  # noqa: TRY400 - a refusal needs no traceback
        yield (
            Refusing(missing, settings.udf),
            "REFUSES UNTRUSTED CODE: there is no sandbox on this machine (`trace doctor`)",
        )
        return
    if isolation.bwrap is None:
        log.error("UNTRUSTED CODE RUNS WITHOUT A SANDBOX: it can do all that Trace can", setting="udf.unsafe")
    async with running(settings, isolation, dispatcher, tasks, stores) as functions:
        yield functions, f"{_describe(isolation)}; up to {settings.udf.sandboxes} sandboxes"
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                await functions.pool.drain()


@asynccontextmanager
async def running(
    settings: Settings, isolation: Isolation, dispatcher: DispatcherClient, tasks: TaskClient, stores: Stores
) -> AsyncIterator[Functions]:
    """Everything that runs functions, without the listener."""
    context = client_context(settings.tls.ca)
    verifier = Verifier(dispatcher.jwks, settings.tokens)
    connector = aiohttp.TCPConnector(ssl=context, limit=LISTENER_CONNECTIONS)
    timeout = aiohttp.ClientTimeout(total=None, connect=10)
    folder = _folder(settings)
    async with (
        AsyncClient(verify=public_context(settings.tls.ca), timeout=60) as http,  # bundles may be in S3
        aiohttp.ClientSession(
            connector=connector, timeout=timeout, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False
        ) as listeners,
    ):
        sandboxes = SandboxContext(
            settings=settings.udf,
            isolation=isolation,
            folder=folder,
            etc=write_etc(folder / "etc"),
            http=listeners,
            tasks=tasks,
            task_url=required_url(settings),
            query_url=settings.endpoints.query_task or "",
            objects=ObjectAccess(verifier, stores.store_for, settings.sink.batch_bytes),
        )
        pool = Pool(lambda key, code: open_sandbox_host(key, code, sandboxes), settings.udf)
        watch = asyncio.create_task(pool.watch())
        try:
            keep = timedelta(days=settings.udf.cache_days)
            bundles = Bundles(settings.home / "cache" / "udf", http, keep)
            yield Functions(pool, bundles, verifier, settings.udf)
        finally:
            watch.cancel()
            await pool.close()
            await verifier.close()
            isolation.close()
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


def runner_api(functions: Functions | Refusing, settings: UdfSettings) -> Listener:
    async def ready() -> None:
        return

    async def invoke(request: Request) -> Response:
        invocation = await read_message(request, Invocation, MOST_BYTES)
        try:
            ended = await cancel_on_disconnect(request, functions.run(invocation))
        except (BadInput, Refused, SetupError) as error:  # the task's own error: a retry would not help
            ended = FunctionError(f"Trace.{error.code}", error.message)
        if isinstance(ended, FunctionError):
            return Response(ended.as_json(), headers={"X-Amz-Function-Error": "Unhandled"}, media_type=JSON)
        return Response(ended, media_type=JSON)

    async def places(request: Request) -> Response:
        del request
        return json_response(functions.places())

    routes = [Route(PATH, invoke, methods=["POST"]), Route(PLACES, places, methods=["GET"])]
    app = listener_app(guarded("runner", routes, InvokeGate(settings)), ready)
    return Listener("runner", settings.host, settings.port, app)


JSON: Final = "application/json"


class InvokeGate:
    """The Dispatcher is known by a secret that only it and this process have."""

    def __init__(self, settings: UdfSettings) -> None:
        self._token = settings.invoke_token

    async def caller(self, request: Request) -> ServiceCaller:
        ours, shown = self._token, bearer(request)
        if ours is None or shown is None or not hmac.compare_digest(shown.encode(), ours.get_secret_value().encode()):
            raise Unauthenticated("the Dispatcher's token is required", where="header authorization")
        return ServiceCaller(DISPATCHER)


def _folder(settings: Settings) -> Path:
    """The folder for the sockets of this process's sandboxes; removes those of killed processes."""
    base = settings.home / "run" / "udf"
    if len(str(base)) > SOCKET_PATH - 40:
        return Path(tempfile.mkdtemp(prefix="trace-udf-"))
    base.mkdir(parents=True, exist_ok=True, mode=0o700)
    for left in base.iterdir():
        if left.name.isdigit() and not Path(f"/proc/{left.name}").exists():
            shutil.rmtree(left, ignore_errors=True)
    folder = base / str(os.getpid())
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    return folder


def _describe(isolation: Isolation) -> str:
    if isolation.bwrap is None:
        return "NO SANDBOX (udf.unsafe)"
    return (
        "each sandbox has its own user" if isolation.users is not None else "sandboxes run as this user, without rights"
    )
