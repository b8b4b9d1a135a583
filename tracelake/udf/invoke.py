"""Runs one invocation: checks its token, fetches its bundle, takes a sandbox, calls the function."""

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
from tracelake.udf.runtime_api import FunctionError, Result
from tracelake.udf.sandbox_host import SandboxHost, SandboxKey
from tracelake.wire.task.lifecycle import Invocation, UdfRef

log = structlog.get_logger()


@dataclass(frozen=True)
class Functions:
    pool: Pool
    bundles: Bundles
    verifier: Verifier
    settings: UdfSettings

    def places(self) -> Places:
        """How many functions of the Dispatcher can run at once now, in total and per organisation."""
        return self.pool.places()

    async def run(
        self, invocation: Invocation, more: Mapping[str, Any] | None = None, *, alone: bool = False
    ) -> Result:
        """Returns the result, or the error. When canceled, it ends the function at once.

        `more`: added to the payload. `alone`: in a sandbox that serves no other invocation.
        """
        claims = await self.verifier.verify(invocation.capability_token)
        udf = code_of(invocation, claims)
        crash_point("runner.asked")
        code = await self.bundles.get(udf)
        key = SandboxKey(claims.org_id, udf.sha256, udf.kind, udf.handler)
        host = await self.pool.take(key, code, alone=alone)
        if isinstance(host, FunctionError):
            return host
        crash_point("runner.sandbox_lent")
        return await self._run_in(host, invocation, payload_of(invocation, more or {}), alone=alone)

    async def _run_in(self, host: SandboxHost, invocation: Invocation, payload: bytes, *, alone: bool) -> Result:
        again = False
        try:
            ended = await host.invoke(invocation, payload, self._seconds(invocation))
            crash_point("runner.ended")
            again = not alone
        finally:
            if not again:  # at once
                await asyncio.shield(host.close())
            self.pool.give_back(host, again=again)
        if isinstance(ended, FunctionError):
            log.info(
                "function failed",
                org=str(host.key.org_id),
                task=str(invocation.task_id),
                kind=ended.kind,
                because=ended.message[:500],
            )
        return ended

    def _seconds(self, invocation: Invocation) -> float:
        return float(invocation.timeout_seconds or self.settings.timeout_seconds)


def payload_of(invocation: Invocation, more: Mapping[str, Any]) -> bytes:
    """The payload for the function: without the address of its bundle."""
    payload: dict[str, Any] = msgspec.to_builtins(invocation)
    payload.pop("bundle_url")
    payload["udf"].pop("url")
    return msgspec.json.encode({**payload, **more})


def code_of(invocation: Invocation, claims: Claims) -> UdfRef:
    """Refuses a token of another attempt."""
    if (claims.task_id, claims.attempt) != (invocation.task_id, invocation.attempt):
        raise Forbidden("the token belongs to another attempt", where="/capability_token")
    if invocation.udf is None:
        raise InvalidRequest("the task has no code to run", where="/udf")
    return invocation.udf
