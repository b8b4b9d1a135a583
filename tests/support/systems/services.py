"""Every internal listener of a system, each over TLS, and callers that show one identity or another."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import UUID, uuid4

import httpx
from pydantic import SecretStr

from tests.support.dispatcher.control import Org
from tests.support.identity.service_tokens import TOKENS, proven_user
from tests.support.systems.walk import Walk, walking
from tests.support.tls import https
from tests.support.verbs import trigger
from tests.support.waiting import until
from tracelake.delivery.routes import delivery_api
from tracelake.domain.access.service_tokens import TokenListener, derive_token
from tracelake.errors import SetupError
from tracelake.ports import CredentialMinter
from tracelake.query.process import serving
from tracelake.query.spark.jvm import QuerySpark, query_options
from tracelake.runtime.listeners import Listener, open_listeners
from tracelake.runtime.metrics import Metrics
from tracelake.settings import (
    DataSettings,
    EndpointSettings,
    IdentitySettings,
    Settings,
    TlsSettings,
    load_settings,
)
from tracelake.spark.owner import SparkOwner
from tracelake.store.db import open_pool
from tracelake.udf.process import Refusing, runner_api
from tracelake.wire.client import dispatcher_client
from tracelake.wire.service.calls import ServiceCall
from tracelake.wire.service.headers import SERVICE_TOKEN
from tracelake.wire.task.lifecycle import Claimed

INVOKE_TOKEN: Final = "what the Dispatcher shows the runner"
PLATFORM_ADMIN: Final = "test|acme"


@dataclass(frozen=True)
class Services:
    walk: Walk
    http: Mapping[str, httpx.AsyncClient]
    """By listener: those of the internal APIs, and `dispatcher_task` and `query_task`."""

    async def call(self, call: ServiceCall, headers: Mapping[str, str]) -> httpx.Response:
        """With a body that no call accepts: who may not make the call is refused before that."""
        path = re.sub(r"{(\w+)}", _part, call.path)
        body = b'{"surprise": 1}' if call.method in {"POST", "PUT", "PATCH"} else b""
        return await self.http[call.listener].request(call.method, path, content=body, headers=headers)

    async def answers(self, call: ServiceCall, headers: Mapping[str, str]) -> bool:
        """Whether the caller may make the call, whatever becomes of it."""
        answer = await self.call(call, headers)
        assert answer.status_code < httpx.codes.INTERNAL_SERVER_ERROR, (call, answer.text)
        return answer.status_code not in {httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN}

    async def claimed(self, org: Org | None = None, cursor: int = 1) -> Claimed:
        """A task that runs, with its capability."""
        walk, org_id = self.walk, (org or self.walk.org).id
        await trigger(walk.control, org_id, "walk", "ask", cursor=cursor, request_id=uuid4())
        find = (
            "SELECT t.id FROM tasks t JOIN jobs j ON j.id = t.job_id"
            " WHERE t.org_id = $1 AND j.name = 'work' AND t.status = 'Queued' AND t.woken_at IS NOT NULL"
        )
        task = await until(lambda: walk.control.pool.fetchval(find, org_id), "a task waits for a worker")
        (answer,) = await walk.dispatcher.claim_batch([task], "w")
        assert isinstance(answer, Claimed)
        return answer


def shown_by(service: str, call: ServiceCall) -> dict[str, str]:
    """What the process of a service sends, for a user if the call can be made for one."""
    if service == "dispatcher":
        return {"authorization": f"Bearer {INVOKE_TOKEN}"}
    listener: TokenListener = "dispatcher" if call.listener == "runner" else call.listener
    acting: TokenListener = "delivery" if service == "delivery" else "query"
    # The Gateway proves to a service for whom it calls; the service shows that to the Dispatcher.
    user = proven_user(PLATFORM_ADMIN, acting if listener == "dispatcher" else listener)
    return {SERVICE_TOKEN: derive_token(TOKENS[service], listener), **user.headers}


@asynccontextmanager
async def services_of(
    state_db: str, queue_db: str, data_db: str, folder: Path, minter: CredentialMinter | None = None
) -> AsyncIterator[Services]:
    """Dispatcher, Query service, delivery process and runner; none of them has anything to do."""
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        walk = await enter(walking(state_db, queue_db, folder, minter=minter))
        await walk.control.pool.execute("UPDATE users SET platform_admin = true")
        data = await enter(open_pool(data_db, name="test", max_size=4))
        settings = _settings(walk, data_db, folder)
        query = await enter(dispatcher_client(_as(settings, "query")))
        delivery = await enter(dispatcher_client(_as(settings, "delivery")))
        spark = QuerySpark(SparkOwner(query_options(settings), folder / "cache"), settings.query.sessions)
        listeners = await enter(serving(settings, data, query, spark, walk.control.objects, metrics=Metrics()))
        apps = [
            Listener("delivery", "127.0.0.1", 0, delivery_api(data, delivery, Metrics())),
            runner_api(Refusing(SetupError("there is no sandbox here"), settings.udf), settings.udf),
        ]
        beside = await enter(open_listeners(apps, settings.tls))
        addresses = {
            "dispatcher": walk.listeners["dispatcher_internal"],
            "dispatcher_task": walk.listeners["dispatcher_task"],
            "query": listeners["query_internal"],
            "query_task": listeners["query_task"],
            **beside,
        }
        http = {name: await enter(https(url, walk.ca)) for name, url in addresses.items()}
        yield Services(walk, http)


def claim_body(task: UUID) -> dict[str, Any]:
    return {"task_id": str(task), "worker_id": "w"}


def _part(found: re.Match[str]) -> str:
    """Of a path: a name or an id of nothing."""
    names = {"dag", "job", "dataset", "alert", "channel", "role", "org", "token", "secret", "queue"}
    if found[1] == "kind":
        return "job"
    return "nothing" if found[1] in names else str(uuid4())


def _as(settings: Settings, service: str) -> Settings:
    return settings.model_copy(update={"identity": IdentitySettings(service_token=SecretStr(TOKENS[service]))})


def _settings(walk: Walk, data_db: str, folder: Path) -> Settings:
    base, pem = load_settings({}, home=folder / "services"), walk.ca.parent / "server.pem"
    return base.model_copy(
        update={
            "tls": TlsSettings(ca=walk.ca, cert=pem, key=pem),
            "data": DataSettings(query_dsn=SecretStr(data_db)),
            "endpoints": EndpointSettings(dispatcher_internal=walk.listeners["dispatcher_internal"]),
            "udf": base.udf.model_copy(update={"invoke_token": SecretStr(INVOKE_TOKEN)}),
        }
    )
