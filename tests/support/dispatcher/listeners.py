"""The listeners of a Dispatcher in this process, and calls to them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx

from tests.support.dispatcher.job_chain import Chain, a_task, deploy_chain
from tests.support.identity.service_tokens import as_service, store_service_tokens
from tests.support.tls import https, tls_in
from tracelake.capability.verifier import Verifier
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.process import dispatching
from tracelake.settings import Settings, load_settings
from tracelake.store.signing_keys import published

WORKER = as_service("worker")


@dataclass(frozen=True)
class Listeners:
    control: Control
    chain: Chain
    task: httpx.AsyncClient
    internal: httpx.AsyncClient

    async def claim(self, task_id: object | None = None) -> dict[str, Any]:
        task_id = task_id or await a_task(self.control, self.chain)
        body = {"task_id": str(task_id), "worker_id": "w"}
        answer = await self.internal.post("/internal/task-claim", json=body, headers=WORKER)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def say(self, verb: str, claimed: dict[str, Any], token: str | None = None, **more: Any) -> httpx.Response:
        fence = {name: claimed[name] for name in ("attempt", "lease_token")}
        body = {"task_id": claimed["task"]["task_id"], **fence, **more}
        headers = {"X-Trace-Task-Capability": token or claimed["capability_token"]}
        return await self.task.post(f"/v1/task/{verb}", json=body, headers=headers)


def settings_in(folder: Path) -> Settings:
    """With a certificate of its own."""
    return load_settings({}, home=folder).model_copy(update={"tls": tls_in(folder / "tls")})


@asynccontextmanager
async def opened(control: Control, settings: Settings) -> AsyncIterator[Listeners]:
    verifier = Verifier(lambda: published(control.pool), settings.tokens)
    control = replace(control, minted=verifier.remember)
    chain = await deploy_chain(control)
    await store_service_tokens(control.pool)
    async with (
        dispatching(control, verifier, settings) as addresses,
        https(addresses["dispatcher_task"], settings.tls.ca) as task,
        https(addresses["dispatcher_internal"], settings.tls.ca) as internal,
    ):
        yield Listeners(control, chain, task, internal)
