"""`trace query`: the data database, read only, behind two doors. Its queries come with scoped access."""

from __future__ import annotations

import hmac

import asyncpg
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from trace_platform.doors import Door, bearer, door_app, open_doors
from trace_platform.errors import Unauthenticated
from trace_platform.observe.metrics import OPENMETRICS_TEXT, Metrics
from trace_platform.process import Process, until_answers
from trace_platform.settings import IdentitySettings
from trace_platform.store.db import answers, open_pool, required


async def main(process: Process) -> None:
    settings = process.settings
    async with open_pool(required(settings.data.query_dsn, "data.query_dsn"), name="query", max_size=4) as pool:
        await until_answers(process, "data Postgres", lambda: answers(pool))
        inside = query_door(pool, metrics_route(process.metrics, settings.identity))
        doors = [
            Door("query_task", settings.query.host, settings.query.task_port, query_door(pool)),
            Door("query_internal", settings.query.host, settings.query.internal_port, inside),
        ]
        async with open_doors(doors, settings.tls, metrics=process.metrics):
            process.ready("data Postgres answers (read only); both doors open")
            await process.stop.wait()


def query_door(pool: asyncpg.Pool, *more: Route) -> Starlette:
    async def ready() -> None:
        await answers(pool)

    return door_app(more, ready)


def metrics_route(metrics: Metrics, identity: IdentitySettings) -> Route:
    """For whoever shows the worker token that this process has itself: it holds no list of others."""

    async def told(request: Request) -> Response:
        shown, ours = bearer(request), identity.worker_token
        if shown is None or ours is None or not hmac.compare_digest(shown.encode(), ours.get_secret_value().encode()):
            raise Unauthenticated("this door asks for a worker token", where="header authorization")
        return Response(metrics.text(), media_type=OPENMETRICS_TEXT)

    return Route("/metrics", told, methods=["GET"])
