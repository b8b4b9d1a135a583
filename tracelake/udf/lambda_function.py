"""The runner as a function of AWS Lambda: `handler` runs the code of one task, as `trace runner` does.

The environment of Lambda takes the place of the sandbox: it runs the code of one organisation. It reaches the task
APIs and the object store, and its role has no rights. For each invocation the bundle is fetched anew and a process is
started: what code leaves behind is not run for another task. Nobody can end a call of Lambda from outside: the function
asks the task API itself whether the attempt is over, and then ends the code.

The task's token is not verified here, where there are no keys: only the Dispatcher may call the function, and whatever
the code does with the token is verified by the APIs.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Protocol
from uuid import UUID

import aiohttp
import msgspec

from tracelake.capability.claims import decode
from tracelake.capability.jws import parse_token
from tracelake.domain.function_answer import Ending, FunctionAnswer
from tracelake.errors import BadInput, Refused, SetupError, TraceError
from tracelake.runtime.background import in_background
from tracelake.runtime.http_client import AsyncClient
from tracelake.runtime.tls import client_context, public_context
from tracelake.sandbox.bubblewrap import Isolation
from tracelake.settings import Settings, UdfSettings, load_settings
from tracelake.udf.fetch_bundle import Bundles
from tracelake.udf.invoke import code_of, payload_of
from tracelake.udf.runtime_api import FunctionError, Result
from tracelake.udf.sandbox_host import SandboxContext, SandboxKey, open_sandbox_host, required_url
from tracelake.udf.watch_attempt import end_when_over
from tracelake.wire.client import task_client
from tracelake.wire.task.lifecycle import Invocation, UdfRef

HANDLER: Final = "tracelake.udf.lambda_function.handler"
OWN_MEMORY_MB: Final = 192
"""Of the function's memory, for the runner itself."""
END_SECONDS: Final = 5.0
"""Code is ended so long before Lambda ends the environment: to send its last lines, and say why."""
FOLDER: Final = Path(tempfile.gettempdir())
"""Of Lambda /tmp, the only folder that can be written, and of this environment alone."""


class Context(Protocol):
    """What Lambda says of an invocation."""

    tenant_id: str | None

    def get_remaining_time_in_millis(self) -> int: ...


@dataclass(frozen=True)
class Task:
    invocation: Invocation
    udf: UdfRef
    org: UUID


class Environment:
    """One environment of Lambda: it runs code of one organisation, the first that it serves."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._org: UUID | None = None

    def run(self, event: Mapping[str, Any], context: Context) -> FunctionAnswer:
        try:
            invocation = msgspec.convert(event, Invocation)
            claims = decode(parse_token(invocation.capability_token).payload)
            task = Task(invocation, code_of(invocation, claims), claims.org_id)
        except (msgspec.ValidationError, TraceError) as wrong:
            return FunctionAnswer(Ending.NOT_STARTED, f"this is no invocation of the Dispatcher: {wrong}")
        if (refusal := self._admit(claims.org_id, context.tenant_id)) is not None:
            return refusal
        left = context.get_remaining_time_in_millis() / 1000 - END_SECONDS
        return asyncio.run(_run(self.settings, task, left))

    def _admit(self, org: UUID, tenant: str | None) -> FunctionAnswer | None:
        if self.settings.udf.lambda_tenants and tenant != str(org):
            fix = "create it with the tenant isolation PER_TENANT, or set udf.lambda_tenants to false for it as well"
            return FunctionAnswer(Ending.NOT_STARTED, f"the function does not know this organisation as tenant ({fix})")
        self._org = self._org or org
        if self._org != org:
            error = "this environment of Lambda has run code of another organisation"
            return FunctionAnswer(Ending.OTHER_ENVIRONMENT, error)
        return None


def handler(event: Mapping[str, Any], context: Context) -> dict[str, Any]:
    global _environment  # noqa: PLW0603 - Lambda keeps the process, and with it this, for the next invocation
    if _environment is None:
        _environment = Environment(settings_of(os.environ))
    return _environment.run(event, context).as_dict()


_environment: Environment | None = None


def settings_of(env: Mapping[str, str]) -> Settings:
    """Those of the function's environment; its memory is that of the function."""
    ours = {name: value for name, value in env.items() if name.startswith("TRACE_")}
    settings = load_settings(ours, home=FOLDER / "trace")
    memory = int(env.get("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "0")) - OWN_MEMORY_MB
    udf = settings.udf.model_copy(update={"memory_mb": max(memory, 64)})
    return settings.model_copy(update={"udf": udf})


async def _run(settings: Settings, task: Task, left: float) -> FunctionAnswer:
    with tempfile.TemporaryDirectory(dir=FOLDER, prefix="trace-", ignore_cleanup_errors=True) as name:
        try:
            result = await _run_in(Path(name), settings, task, left)
        except (BadInput, Refused, SetupError) as wrong:  # the task's own error: a retry would not help
            return FunctionAnswer(Ending.FAILED, f"Trace.{wrong.code}: {wrong.message}")
        except TraceError as outage:
            return FunctionAnswer(Ending.NOT_STARTED, f"{outage.code}: {outage.message}")
    if isinstance(result, FunctionError):
        return FunctionAnswer(Ending.FAILED, f"{result.kind}: {result.message}")
    return FunctionAnswer(Ending.RETURNED)


async def _run_in(folder: Path, settings: Settings, task: Task, left: float) -> Result:
    async with (
        AsyncClient(verify=public_context(settings.tls.ca), timeout=60) as http,
        _sandboxes(settings, folder) as context,
    ):
        invocation, udf = task.invocation, task.udf
        code = await Bundles(folder / "code", http, timedelta(days=1)).get(udf)
        host = await open_sandbox_host(SandboxKey(task.org, udf.sha256, udf.kind, udf.handler), code, context)
        if isinstance(host, FunctionError):
            return host
        try:
            async with in_background(end_when_over(host, invocation, context.tasks)):
                seconds = _seconds(settings.udf, invocation, left)
                return await host.invoke(invocation, payload_of(invocation, {}), seconds)
        finally:
            await host.close()


@asynccontextmanager
async def _sandboxes(settings: Settings, folder: Path) -> AsyncIterator[SandboxContext]:
    connector = aiohttp.TCPConnector(ssl=client_context(settings.tls.ca))
    timeout = aiohttp.ClientTimeout(total=None, connect=10)
    async with (
        task_client(settings) as tasks,
        aiohttp.ClientSession(
            connector=connector, timeout=timeout, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False
        ) as http,
    ):
        yield SandboxContext(
            settings=settings.udf,
            isolation=Isolation(None),
            folder=folder,
            etc=folder,
            http=http,
            tasks=tasks,
            task_url=required_url(settings),
            query_url=settings.endpoints.query_task or "",
            objects=None,
        )


def _seconds(settings: UdfSettings, invocation: Invocation, left: float) -> float:
    return max(1.0, min(float(invocation.timeout_seconds or settings.timeout_seconds), left))
