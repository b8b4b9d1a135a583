"""`trace query`: SQL over granted datasets, on a Spark of its own, behind two listeners.

The listeners open at once. Spark starts after a delay or with the first query, which waits for it: the cores are needed
for the start of the system.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Final

import asyncpg
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tracelake.capability.verifier import Verifier
from tracelake.ports import ObjectStore
from tracelake.query.answer import QueryAnswerer
from tracelake.query.audit import Audit
from tracelake.query.choose_engine import ChosenEngine
from tracelake.query.diff.compare import DatasetDiffer
from tracelake.query.diff.compare_release import ReleaseComparer
from tracelake.query.encode import Encoder
from tracelake.query.engine import InProgress
from tracelake.query.limits.engine_seconds import EngineSeconds
from tracelake.query.limits.org_limits import LimitedEngine
from tracelake.query.resolve import Resolver
from tracelake.query.routes import diff_route, openapi_route, task_route, user_route, verify_route
from tracelake.query.sail.engine import SailEngine
from tracelake.query.spark.engine import SparkEngine
from tracelake.query.spark.jvm import QuerySpark, query_options
from tracelake.query.verify.verify import DatasetVerifier
from tracelake.runtime.listeners import Listener, listener_app, open_listeners
from tracelake.runtime.metrics import OPENMETRICS_TEXT, Metrics
from tracelake.runtime.process import Process, wait_for_service
from tracelake.settings import Settings
from tracelake.spark.owner import SparkOwner
from tracelake.store.db import answers, open_pool, required
from tracelake.wire.client import DispatcherClient, dispatcher_client
from tracelake.wire.service.gate import DispatcherGate, guarded

IN_PROGRESS: Final[tuple[InProgress, ...]] = ("running", "waiting")


async def main(process: Process, objects: ObjectStore) -> None:
    settings = process.settings
    owner = SparkOwner(query_options(settings), settings.home / "cache")
    spark = QuerySpark(owner, settings.query.sessions)
    dsn = required(settings.data.query_dsn, "data.query_dsn")
    async with (
        open_pool(dsn, name="query", max_size=4) as pool,
        dispatcher_client(settings) as dispatcher,
        serving(settings, pool, dispatcher, spark, objects, metrics=process.metrics),
    ):
        await wait_for_service(process, "data Postgres", lambda: answers(pool))
        process.ready("data Postgres answers (read only); both listeners are open; Spark starts when it is needed")
        warming = asyncio.create_task(spark.warm_after(settings.query.warm_after_seconds))
        try:
            await process.stop.wait()
        finally:
            warming.cancel()
            await spark.close()


@asynccontextmanager
async def serving(
    settings: Settings,
    pool: asyncpg.Pool,
    dispatcher: DispatcherClient,
    spark: QuerySpark,
    objects: ObjectStore,
    *,
    metrics: Metrics,
) -> AsyncIterator[dict[str, str]]:
    """Open both listeners and yield their addresses."""
    dsn = required(settings.data.query_dsn, "data.query_dsn")
    spent, flow = EngineSeconds(settings.query.engine_seconds), settings.flow
    on_spark = SparkEngine(spark, objects, dsn, settings.query, metrics, spent=spent, flow=flow)
    on_sail = SailEngine(settings.home / "work" / "sail", objects, dsn, settings.query, metrics, spent=spent, flow=flow)
    await on_sail.remove_leftovers()
    engine = ChosenEngine(on_spark, on_sail, settings.query, metrics)
    limited = LimitedEngine.of(engine, settings.query)
    for state in IN_PROGRESS:
        metrics.queries_in_progress.labels(state).set_function(partial(engine.in_progress, state))
    audit = Audit(settings.home / "work" / "query-audit", dispatcher)
    resolver = Resolver(dispatcher)
    answerer = QueryAnswerer(resolver, limited, audit, settings.query, metrics)
    encoder = Encoder()
    differ = DatasetDiffer(dispatcher, resolver, limited.beside(on_spark), audit, settings.query)
    verifier = Verifier(dispatcher.jwks, settings.tokens)
    inside = (
        user_route(answerer, encoder),
        verify_route(
            DatasetVerifier(dispatcher, objects, settings.home / "work" / "verify"),
            dispatcher,
            settings.query.rights_seconds,
        ),
        diff_route(differ, dispatcher, settings.query.rights_seconds),
        openapi_route(),
        metrics_route(metrics),
    )
    allowed = guarded("query", inside, DispatcherGate(dispatcher.service_of))
    listeners = [
        Listener(
            "query_task",
            settings.query.host,
            settings.query.task_port,
            query_api(pool, task_route(answerer, verifier, encoder)),
        ),
        Listener("query_internal", settings.query.host, settings.query.internal_port, query_api(pool, *allowed)),
    ]
    comparer = ReleaseComparer(dispatcher, on_spark, settings.query)
    tasks = [asyncio.create_task(work) for work in (audit.run(), comparer.run())]
    try:
        async with open_listeners(listeners, settings.tls, metrics=metrics, limits=settings.http) as addresses:
            yield addresses
    finally:
        for task in tasks:
            task.cancel()
        with suppress(Exception):  # the next process sends the rest
            await audit.send_all()
        encoder.close()
        on_spark.close()
        await on_sail.close()
        await verifier.close()


def query_api(pool: asyncpg.Pool, *more: Route) -> Starlette:
    async def ready() -> None:
        await answers(pool)

    return listener_app(more, ready)


def metrics_route(metrics: Metrics) -> Route:
    async def metrics_text(request: Request) -> Response:
        del request
        return Response(metrics.text(), media_type=OPENMETRICS_TEXT)

    return Route("/metrics", metrics_text, methods=["GET"])
