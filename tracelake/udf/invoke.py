"""One invocation, start to end: whose it is, its bundle, a sandbox, the call, the sandbox back or ended."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import structlog

from tracelake.capability.claims import Claims
from tracelake.capability.verifier import Verifier
from tracelake.errors import Forbidden, InvalidRequest
from tracelake.ports import Places
from tracelake.runtime.crash_points import crash_point
from tracelake.settings import UdfSettings
from tracelake.udf.fetch_bundle import Bundles
from tracelake.udf.pool import Pool
from tracelake.udf.runtime_api import Ended, FunctionError
from tracelake.udf.sandbox_host import Key, SandboxHost
from tracelake.wire.task_messages import Invocation, UdfRef

log = structlog.get_logger()


@dataclass(frozen=True)
class Functions:
    pool: Pool
    bundles: Bundles
    verifier: Verifier
    settings: UdfSettings

    def places(self) -> Places:
        """How many functions of the Dispatcher can run at once now, in all and of one organisation."""
        return self.pool.places()

    async def run(self, invocation: Invocation, more: Mapping[str, Any] | None = None, *, alone: bool = False) -> Ended:
        """What the function said, or why it said nothing. Canceled: it is ended at once.

        `more`: what it is handed beside the invocation. `alone`: in a sandbox that serves nobody else, before or after.
        """
        claims = await self.verifier.verify(invocation.capability_token)
        udf = _checked(invocation, claims)
        crash_point("runner.asked")
        code = await self.bundles.get(udf)
        key = Key(claims.org_id, udf.sha256, udf.kind, udf.handler)
        host = await self.pool.take(key, code, alone=alone)
        if isinstance(host, FunctionError):
            return host
        crash_point("runner.sandbox_lent")
        return await self._run_in(host, invocation, payload_of(invocation, more or {}), alone=alone)

    async def _run_in(self, host: SandboxHost, invocation: Invocation, payload: bytes, *, alone: bool) -> Ended:
        again = False
        try:
            ended = await host.invoke(invocation, payload, self._seconds(invocation))
            crash_point("runner.ended")
            again = not alone
        finally:
            if not again:  # not a moment longer than it is wanted
                await asyncio.shield(host.close())
            self.pool.give_back(host, again=again)
        if isinstance(ended, FunctionError):
            log.info("function failed", task=str(invocation.task_id), kind=ended.kind, because=ended.message[:500])
        return ended

    def _seconds(self, invocation: Invocation) -> float:
        return float(invocation.timeout_seconds or self.settings.timeout_seconds)


def payload_of(invocation: Invocation, more: Mapping[str, Any]) -> bytes:
    """What the function may know: not where its bundle lies."""
    told: dict[str, Any] = msgspec.to_builtins(invocation)
    told.pop("bundle_url")
    told["udf"].pop("url")
    return msgspec.json.encode({**told, **more})


def _checked(invocation: Invocation, claims: Claims) -> UdfRef:
    if (claims.task_id, claims.attempt) != (invocation.task_id, invocation.attempt):
        raise Forbidden("the token is another attempt's", where="/capability_token")
    if invocation.udf is None:
        raise InvalidRequest("the task has no code to run", where="/udf")
    return invocation.udf
