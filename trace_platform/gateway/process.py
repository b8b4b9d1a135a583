"""`trace gateway`: the public door. What lies behind `/v1/task/*` and `/internal/*` does not exist here."""

from __future__ import annotations

from typing import Annotated

from fastapi import FastAPI, Header, Response

from trace_platform.client import DispatcherClient, dispatcher_client
from trace_platform.doors import HANDLERS, Door, health_routes, json_response, open_doors
from trace_platform.gateway.users import user_of
from trace_platform.process import Process, until_answers
from trace_platform.settings import IdentitySettings


async def main(process: Process) -> None:
    settings = process.settings
    async with dispatcher_client(settings) as dispatcher:
        await until_answers(process, "the Dispatcher", dispatcher.ready)
        door = Door("gateway", settings.gateway.host, settings.gateway.port, public_door(dispatcher, settings.identity))
        async with open_doors([door], settings.tls) as addresses:
            process.ready(f"open at {addresses['gateway']}")
            await process.stop.wait()


def public_door(dispatcher: DispatcherClient, identity: IdentitySettings) -> FastAPI:
    app = FastAPI(title="Trace", docs_url=None, redoc_url=None, openapi_url="/v1/openapi.json")
    for kind, handler in HANDLERS.items():
        app.add_exception_handler(kind, handler)
    app.router.routes.extend(health_routes(dispatcher.ready))

    @app.get("/v1/me", summary="The user that the token stands for, with organisation and role")
    async def me(authorization: Annotated[str | None, Header()] = None) -> Response:
        return json_response(await user_of(authorization, identity, dispatcher))

    return app
