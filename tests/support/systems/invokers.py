"""Both invokers before one Dispatcher: the runner with its sandboxes, and the runner as a function of Lambda."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec

from tests.support.aws.lambda_server import FUNCTION, LambdaServer, running_lambda
from tests.support.dispatcher.control import Org
from tests.support.systems.runner import INVOKE_TOKEN, RunnerSystem, invocation
from tracelake.adapters.invoker_http import HttpInvoker
from tracelake.adapters.invoker_lambda import LambdaInvoker
from tracelake.ports import Invoked, Invoker
from tracelake.runtime.tls import client_context
from tracelake.settings import UdfSettings
from tracelake.udf.function_zip import FunctionZip, function_zip
from tracelake.wire.task.lifecycle import Claimed, UdfRef

runner_zip = cache(function_zip)
"""The zip as it is uploaded, packed once."""


@dataclass(frozen=True)
class Invoking:
    invoker: Invoker
    system: RunnerSystem
    places: int
    """How many calls run at once."""

    async def call(self, udf: UdfRef, claimed: Claimed | None = None, org: Org | None = None, **more: Any) -> Invoked:
        claimed = claimed or await self.system.claimed(org)
        payload = msgspec.json.encode(invocation(claimed, udf, **more))
        whose = (org or self.system.walk.org).id
        return await self.invoker.invoke(payload, org=whose, timeout_seconds=more.get("timeout_seconds", 60))

    async def logged(self, claimed: Claimed) -> list[str]:
        sql = "SELECT text FROM task_logs WHERE task_id = $1 ORDER BY n"
        return [row["text"] for row in await self.system.fetch(sql, claimed.task.task_id)]


@asynccontextmanager
async def on_runner(system: RunnerSystem) -> AsyncIterator[Invoking]:
    invoker = HttpInvoker(str(system.http.base_url), INVOKE_TOKEN, client_context(system.walk.ca))
    try:
        yield Invoking(invoker, system, system.settings.udf.per_org)
    finally:
        await invoker.close()


@asynccontextmanager
async def on_lambda(system: RunnerSystem, server: LambdaServer) -> AsyncIterator[Invoking]:
    server.environment |= environment_of(system)
    server.concurrency = system.settings.udf.per_org
    invoker = LambdaInvoker(lambda_settings(server), calls=server.concurrency + 1)
    try:
        yield Invoking(invoker, system, server.concurrency)
    finally:
        await invoker.close()


@asynccontextmanager
async def lambda_of_the_runner() -> AsyncIterator[LambdaServer]:
    made: FunctionZip = await asyncio.to_thread(runner_zip)
    async with running_lambda(made.archive, made.handler) as server:
        yield server


def environment_of(system: RunnerSystem) -> dict[str, str]:
    """What the function is configured with."""
    return {
        "TRACE_ENDPOINTS__DISPATCHER_TASK": system.walk.listeners["dispatcher_task"],
        "TRACE_ENDPOINTS__QUERY_TASK": system.walk.listeners["dispatcher_task"],
        "TRACE_TLS__CA": str(system.walk.ca),
    }


def lambda_settings(server: LambdaServer, **more: Any) -> UdfSettings:
    return UdfSettings(
        invoker="lambda", lambda_function=FUNCTION, lambda_endpoint=server.url, **{"lambda_tenants": True, **more}
    )
