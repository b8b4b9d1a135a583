"""The Gateway with every service behind it, in this process. Nothing runs by itself: rows stay as a test left them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import asyncpg
from pydantic import SecretStr

from tests.support.identity.service_tokens import AsGateway, as_service
from tests.support.systems.gateway import System, over, system
from tests.support.tls import https, tls_in
from tracelake.delivery.routes import delivery_api
from tracelake.dispatcher.http.internal_routes import internal_api
from tracelake.domain.access.seal import Seal, new_key, read_keys
from tracelake.gateway.process import public_api
from tracelake.query.process import serving
from tracelake.query.spark.jvm import QuerySpark, query_options
from tracelake.runtime.metrics import Metrics
from tracelake.settings import DataSettings, Settings, load_settings
from tracelake.spark.owner import SparkOwner
from tracelake.store.db import open_pool
from tracelake.wire.client import DispatcherClient


@dataclass(frozen=True)
class WholeApi:
    trace: System
    data: asyncpg.Pool
    """The data database."""


@asynccontextmanager
async def whole_api(state_db: str, queue_db: str, data_db: str, folder: Path) -> AsyncIterator[WholeApi]:
    """Of two organisations: see `system`. No query runs, because Spark is not started."""
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        trace = await enter(system(state_db, queue_db, folder, Seal(read_keys(new_key()))))
        data = await enter(open_pool(data_db, name="test", max_size=4))
        settings = _settings(data_db, folder)
        spark = QuerySpark(SparkOwner(query_options(settings), folder / "cache"), settings.query.sessions)
        api = internal_api(trace.control)
        asked = {name: DispatcherClient(await enter(over(api, as_service(name)))) for name in ("query", "delivery")}
        listeners = await enter(
            serving(settings, data, asked["query"], spark, trace.control.objects, metrics=Metrics())
        )
        query = await enter(https(listeners["query_internal"], settings.tls.ca, auth=AsGateway("query")))
        delivery = await enter(over(delivery_api(data, asked["delivery"], Metrics()), auth=AsGateway("delivery")))
        app = public_api(DispatcherClient(trace.inside), trace.identity, query=query, delivery=delivery)
        yield WholeApi(replace(trace, gateway=await enter(over(app))), data)


def _settings(data_db: str, folder: Path) -> Settings:
    query = {"task_port": 0, "internal_port": 0}
    base = load_settings({}, home=folder / "query")
    return base.model_copy(
        update={
            "tls": tls_in(folder / "tls"),
            "data": DataSettings(query_dsn=SecretStr(data_db)),
            "query": base.query.model_copy(update=query),
        }
    )
