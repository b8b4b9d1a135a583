"""What has become of batches: rows in the table become a commit and an event, a refused batch says why it is dead.

One transaction; what was settled before stays as it was, so that a sink that died after its commit is repeated without
harm. Next: `route_event.py`.
"""

from __future__ import annotations

from trace_platform.contracts import SettleAnswer, SettleRequest
from trace_platform.crash_points import crash_point
from trace_platform.dispatcher.control import Control
from trace_platform.store.queries import queries


async def settle_buffers(control: Control, request: SettleRequest) -> SettleAnswer:
    sql = queries("buffered")
    async with control.pool.acquire() as connection, connection.transaction():
        settled = 0
        if request.committed:
            columns = zip(*((one.publish_id, one.seq, one.rows, one.bytes) for one in request.committed), strict=True)
            settled += await connection.fetchval(sql["settle_committed"], *map(list, columns))
        if request.dead:
            columns = zip(*((one.publish_id, one.line, one.reason) for one in request.dead), strict=True)
            settled += len(await connection.fetch(sql["settle_dead"], *map(list, columns)))
        crash_point("settle_buffers.before_commit")
    crash_point("settle_buffers.after_commit")
    control.owed.ring()
    return SettleAnswer(settled=settled)
