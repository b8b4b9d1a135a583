"""Records what became of batches: a commit and an event for each that was applied, the reason for each refused one.

One transaction. Batches that were settled before stay as they are, so a sink that died after its commit may report
again. Next: `events/route.py`.
"""

from __future__ import annotations

import asyncpg

from tracelake.dispatcher.signal import Signal
from tracelake.runtime.crash_points import crash_point
from tracelake.store.queries import queries
from tracelake.wire.task.buffers import SettleAnswer, SettleRequest


async def settle_buffers(pool: asyncpg.Pool, outbox_signal: Signal, request: SettleRequest) -> SettleAnswer:
    sql, settled = queries("buffered"), 0
    async with pool.acquire() as connection, connection.transaction():
        if applied := request.committed:
            columns = zip(*((batch.publish_id, batch.seq, batch.rows, batch.bytes) for batch in applied), strict=True)
            settled += await connection.fetchval(sql["settle_committed"], *map(list, columns))
        if request.dead:
            columns = zip(*((batch.publish_id, batch.line, batch.reason) for batch in request.dead), strict=True)
            settled += len(await connection.fetch(sql["settle_dead"], *map(list, columns)))
        crash_point("settle_buffers.before_commit")
    crash_point("settle_buffers.after_commit")
    outbox_signal.notify()
    return SettleAnswer(settled=settled)
