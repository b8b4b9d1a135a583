"""Untrusted code as it runs: a Dispatcher with its listeners, a runner with its own, sandboxes; bundles of a test.

A task is claimed as the Dispatcher would, and its bundle posted to the runner with the claim's token and fence.
"""

from __future__ import annotations

import hashlib
import textwrap
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from uuid import UUID, uuid4

import httpx
import msgspec
from aiohttp import web
from pydantic import SecretStr

from tests.support.dispatcher.control import Org, deployed_and_active
from tests.support.identity.service_tokens import TOKENS
from tests.support.systems.walk import OnDispatcher, Walk, walking
from tests.support.tls import https
from tests.support.udf.bundles import zipped
from tracelake.domain.dag.catalog import OperatorSpec, checked_by
from tracelake.domain.dag.model import Storage
from tracelake.operators.api.outcome import OperatorConfig as NoConfig
from tracelake.runtime.listeners import open_listeners
from tracelake.sandbox.bubblewrap import Isolation, choose_isolation
from tracelake.settings import EndpointSettings, IdentitySettings, Settings, TlsSettings, load_settings
from tracelake.udf.invoke import Functions
from tracelake.udf.object_stores import Stores
from tracelake.udf.process import PATH, runner_api, running
from tracelake.wire.task.lifecycle import Claimed, Invocation, UdfRef
from tracelake.wiring import session_objects

HANDS = OperatorSpec(checked_by(NoConfig), frozenset({"ecs_udf"}), storages=(Storage.PARQUET, Storage.BUFFERED))
"""An operator whose tasks are run by the test."""
INVOKE_TOKEN = "what the Dispatcher shows"
EXECUTABLE = 0o100755
HANDS = OperatorSpec(checked_by(NoConfig), frozenset({"ecs_udf"}), storages=(Storage.PARQUET, Storage.BUFFERED))
DAG = """
name: code
jobs:
  - {name: ask, operator: noop, runtime: dispatcher, source: {kind: manual}}
  - name: think
    operator: hands
    runtime: ecs_udf
    timeout_seconds: 2000s
    heartbeat_timeout_seconds: 3600s
    inputs: [{from: {job: ask}}]
    outputs: [{dataset: alert_events}]
publish:
  alert_events:
    storage: postgres
    write_mode: buffered
    columns: {dedupe_key: text, severity: {type: text, nullable: false}}
    unique_key: [dedupe_key]
"""
HELPERS = '''
import json, os, urllib.error, urllib.request

def ask(url, method="POST", body=None, headers=None):
    """Status and body; never raises for an answer."""
    data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers=headers or {}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()

def fence(event):
    return {name: event[name] for name in ("task_id", "attempt", "lease_token")}

def task(event, verb, **body):
    headers = {"X-Trace-Task-Capability": event["capability_token"], "content-type": "application/json"}
    return ask(os.environ["TRACE_TASK_URL"] + "/v1/task/" + verb, body={**fence(event), **body}, headers=headers)

def complete(event, **more):
    return task(event, "complete", status="Completed", **more)
'''


@dataclass
class BundleServer:
    """Serves bundles at a plain URL."""

    url: str = ""
    archives: dict[str, bytes] = field(default_factory=dict)

    def put(self, archive: bytes, kind: Literal["python", "node", "bootstrap"], handler: str) -> UdfRef:
        sha256 = hashlib.sha256(archive).hexdigest()
        self.archives[sha256] = archive
        return UdfRef(
            bundle="test",
            sha256=sha256,
            kind=kind,
            handler=handler,
            size_bytes=len(archive),
            url=f"{self.url}/{sha256}",
        )


@dataclass(frozen=True)
class Answer:
    status: int
    body: Any
    failed: bool


@dataclass(frozen=True)
class RunnerSystem(OnDispatcher):
    bundles: BundleServer
    functions: Functions
    settings: Settings
    http: httpx.AsyncClient
    """A client of the runner's listener."""

    def python(self, code: str, handler: str = "main.handler") -> UdfRef:
        """A bundle with this `main.py`; `ask`, `task` and `complete` are in `helpers`."""
        source = ("main.py", textwrap.dedent(code).encode())
        return self.bundles.put(zipped(source, ("helpers.py", HELPERS.encode())), "python", handler)

    def node(self, code: str, name: str = "main.mjs") -> UdfRef:
        return self.bundles.put(zipped((name, textwrap.dedent(code).encode())), "node", "main.handler")

    def executable(self, code: str) -> UdfRef:
        archive = zipped(("bootstrap", textwrap.dedent(code).lstrip().encode()), mode=EXECUTABLE)
        return self.bundles.put(archive, "bootstrap", "main.handler")

    async def claimed(self, org: Org | None = None) -> Claimed:
        await self.trigger("code", "ask", org=org, cursor=uuid4().int >> 70)
        return await self.claim_task("think", org)

    async def run(
        self, udf: UdfRef, claimed: Claimed | None = None, *, token: str = INVOKE_TOKEN, **more: Any
    ) -> Answer:
        """One invocation over HTTP. `more` replaces fields of the claim."""
        body = msgspec.json.encode(invocation(claimed or await self.claimed(), udf, **more))
        answer = await self.http.post(PATH, content=body, headers={"authorization": f"Bearer {token}"})
        return Answer(answer.status_code, answer.json(), "x-amz-function-error" in answer.headers)

    async def status(self, task: UUID) -> str:
        found: str = await self.walk.control.pool.fetchval("SELECT status::text FROM tasks WHERE id = $1", task)
        return found


def invocation(claimed: Claimed, udf: UdfRef, **more: Any) -> Invocation:
    task: Mapping[str, Any] = {name: getattr(claimed.task, name) for name in claimed.task.__struct_fields__}
    output = {
        **task,
        "udf": udf,
        "lease_token": claimed.lease_token,
        "lease_expires_at": claimed.lease_expires_at,
        "capability_token": claimed.capability_token,
        "bundle_url": udf.url,
        **more,
    }
    return Invocation(**output)


@asynccontextmanager
async def running_system(
    dsns: Mapping[str, str],
    folder: Path,
    isolation: Isolation | None = None,
    s3: Mapping[str, Any] | None = None,
    **udf: Any,
) -> AsyncIterator[RunnerSystem]:
    """`s3`: what a walk needs to have its objects there, in place of a disk."""
    async with walking(dsns["state"], dsns["queue"], folder, **(s3 or {})) as walk, _bundle_server() as bundles:
        await deployed_and_active(walk.control, walk.org, DAG)
        settings = settings_for(walk, folder, **udf)
        if s3 is not None:  # no keys of its own: only those that are minted for a task
            bare = s3["places"].model_copy(update={"access_key_id": None, "secret_access_key": None})
            settings = settings.model_copy(update={"objects": bare})
        stores = Stores(settings, walk.control.objects, walk.tasks, session_objects)
        async with (
            running(settings, isolation or choose_isolation(), walk.dispatcher, walk.tasks, stores) as functions,
            open_listeners([runner_api(functions, settings.udf)], settings.tls) as listeners,
            https(listeners["runner"], walk.ca) as http,
        ):
            yield RunnerSystem(walk, bundles, functions, settings, http)


def settings_for(walk: Walk, folder: Path, **udf: Any) -> Settings:
    base = load_settings({}, home=folder / "runner")
    pem = walk.ca.parent / "server.pem"
    return base.model_copy(
        update={
            "tls": TlsSettings(ca=walk.ca, cert=pem, key=pem),
            "identity": IdentitySettings(service_token=SecretStr(TOKENS["runner"])),
            "endpoints": EndpointSettings(
                dispatcher_task=walk.listeners["dispatcher_task"],
                dispatcher_internal=walk.listeners["dispatcher_internal"],
                query_task=walk.listeners["dispatcher_task"],
            ),
            "udf": base.udf.model_copy(update={"invoke_token": SecretStr(INVOKE_TOKEN), **udf}),
        }
    )


@asynccontextmanager
async def _bundle_server() -> AsyncIterator[BundleServer]:
    bundles = BundleServer()

    async def give(request: web.Request) -> web.Response:
        return web.Response(body=bundles.archives[request.match_info["sha"]])

    app = web.Application()
    app.router.add_get("/{sha}", give)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    bundles.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield bundles
    finally:
        await runner.cleanup()
