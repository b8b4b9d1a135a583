"""A Dispatcher and a Gateway that the verbs of the command line call, and what a verb has printed."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from pydantic import SecretStr

from tests.support.dispatcher.control import control_for
from tests.support.dispatcher.job_chain import claimed, completion, drained
from tests.support.identity.service_tokens import TOKENS
from tests.support.loop_thread import LoopThread
from tests.support.systems.gateway import people
from tests.support.tls import tls_in
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.http.internal_routes import internal_api
from tracelake.domain.access.seal import Seal, new_key, read_keys
from tracelake.gateway.process import public_api
from tracelake.lite.home import Home, ensure_issuer_key, public_pem
from tracelake.lite.user_token import mint_user_token
from tracelake.query.process import query_api
from tracelake.query.routes import verify_route
from tracelake.query.verify.verify import DatasetVerifier
from tracelake.runtime.listeners import Listener, open_listeners
from tracelake.settings import EndpointSettings, IdentitySettings, Settings
from tracelake.store.first_start import FIRST_ADMIN
from tracelake.wire.client import dispatcher_client, service_client


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Trace = Callable[..., Said]


class Running:
    """A Dispatcher's internal API, the verifier of a Query service and a Gateway, on real listeners in a thread."""

    def __init__(self, home: Home, state: str, queue: str) -> None:
        self._home, self._state, self._queue = home, state, queue
        self._stack = AsyncExitStack()
        self.control: Control

    def start(self) -> None:
        self._thread = LoopThread()
        self.do(self._open())

    def stop(self) -> None:
        self.do(self._stack.aclose())
        self._thread.close()

    def stop_gateway(self) -> None:
        self._home.ready.unlink()

    def do(self, work: Any) -> Any:
        return self._thread.do(work)

    async def _open(self) -> None:
        home, enter = self._home, self._stack.enter_async_context
        tls = tls_in(home.tls)
        key = ensure_issuer_key(home)
        identity = IdentitySettings(user_public_key=public_pem(key), service_token=SecretStr(TOKENS["gateway"]))
        seal = Seal(read_keys(new_key()))
        self.control = await enter(control_for(self._state, self._queue, home.root, seal=seal))
        await people(self.control)
        await self.control.pool.execute(
            "UPDATE users SET external_id = $1 WHERE external_id = 'acme|admin'", FIRST_ADMIN
        )
        inside = await enter(open_listeners([Listener("internal", "127.0.0.1", 0, internal_api(self.control))], tls))
        settings = Settings(
            home=home.root,
            identity=identity,
            tls=tls,
            endpoints=EndpointSettings(dispatcher_internal=inside["internal"]),
        )
        dispatcher = await enter(dispatcher_client(settings))
        verifier = DatasetVerifier(dispatcher, self.control.objects, home.root / "work")
        service = query_api(self.control.pool, verify_route(verifier, dispatcher, 2.0))
        beside = await enter(open_listeners([Listener("query", "127.0.0.1", 0, service)], tls))
        query = await enter(service_client(settings, beside["query"], "query"))
        gateway = public_api(dispatcher, identity, tls, query)
        public = await enter(open_listeners([Listener("gateway", "127.0.0.1", 0, gateway)], tls))
        document = {
            "endpoints": public,
            "ca_file": str(tls.ca),
            "user_token": mint_user_token(key, identity, FIRST_ADMIN),
        }
        home.ready.write_text(json.dumps(document))


async def fail(control: Control, task_id: UUID) -> None:
    """Ends an attempt of the task with a hostile text, for the last time."""
    task, claims = await claimed(control, task_id)
    error = "the disk [1] is full\x1b]0;owned\x07\u202e\nsecond line"
    output = completion(task, status="Failed", error_message=error, retryable=False)
    await control.completer()(output, claims)


def deployed_task(running: Running, trace: Trace, file: Path) -> UUID:
    assert trace("dag", "deploy", str(file), "--activate").code == 0
    assert trace("trigger", "shop", "fetch", "--range", "0-9").code == 0
    running.do(drained(running.control))
    return UUID(trace("task", "list", "--json").json["tasks"][0]["id"])
