"""`trace query`: the data database, read only, behind two doors. Its queries come with scoped access."""

from __future__ import annotations

import asyncpg
from starlette.applications import Starlette

from trace_platform.doors import Door, door_app, open_doors
from trace_platform.process import Process, until_answers
from trace_platform.store.db import answers, open_pool, required


async def main(process: Process) -> None:
    settings = process.settings
    async with open_pool(required(settings.data.query_dsn, "data.query_dsn"), name="query", max_size=4) as pool:
        await until_answers(process, "data Postgres", lambda: answers(pool))
        doors = [
            Door("query_task", settings.query.host, settings.query.task_port, query_door(pool)),
            Door("query_internal", settings.query.host, settings.query.internal_port, query_door(pool)),
        ]
        async with open_doors(doors, settings.tls):
            process.ready("data Postgres answers (read only); both doors open")
            await process.stop.wait()


def query_door(pool: asyncpg.Pool) -> Starlette:
    async def ready() -> None:
        await answers(pool)

    return door_app([], ready)
