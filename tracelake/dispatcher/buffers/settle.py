"""What has become of batches: rows in the table become a commit and an event, a refused batch says why it is dead.

One transaction; what was settled before stays as it was, so that a sink that died after its commit is repeated without
harm. Next: `events/route.py`.
"""

from __future__ import annotations

from tracelake.dispatcher.control import Control
from tracelake.runtime.crash_points import crash_point
from tracelake.store.queries import queries
from tracelake.wire.task_messages import SettleAnswer, SettleRequest


async def settle_buffers(control: Control, request: SettleRequest) -> SettleAnswer:
    sql = queries("buffered")
    async with control.pool.acquire() as connection, connection.transaction():
        settled = 0
        if request.committed:
            columns = zip(
                *(
                    (partition.publish_id, partition.seq, partition.rows, partition.bytes)
                    for partition in request.committed
                ),
                strict=True,
            )
            settled += await connection.fetchval(sql["settle_committed"], *map(list, columns))
        if request.dead:
            columns = zip(*((item.publish_id, item.line, item.reason) for item in request.dead), strict=True)
            settled += len(await connection.fetch(sql["settle_dead"], *map(list, columns)))
        crash_point("settle_buffers.before_commit")
    crash_point("settle_buffers.after_commit")
    control.outbox_signal.notify()
    return SettleAnswer(settled=settled)
