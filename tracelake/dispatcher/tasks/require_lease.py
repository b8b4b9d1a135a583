"""Whether an attempt may still ask: reads are refused to it once it has ended, as writes are."""

from __future__ import annotations

from tracelake.dispatcher.control import Control
from tracelake.errors import LeaseLost
from tracelake.store.queries import queries
from tracelake.wire.message import Fenced


async def require_lease(control: Control, request: Fenced) -> None:
    """LeaseLost unless this attempt is the current one and runs. It locks nothing: the answer is of this moment."""
    sql = queries("claim")["status_of_attempt"]
    status = await control.hot.fetchval(sql, request.task_id, request.attempt, request.lease_token)
    if status is None:
        raise LeaseLost("another attempt is the current one", where="/attempt", hint="stop, report nothing")
    if status != "Running":
        raise LeaseLost(f"the attempt is over: the task is {status}", where="/lease_token", hint="stop, report nothing")
