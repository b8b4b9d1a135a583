"""A heartbeat: extends the lease, and answers whether the task was canceled or is to pause.

An attempt that has lost its lease is refused, and never gets it back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import asyncpg

from tracelake.capability.claims import Claims
from tracelake.dispatcher.tasks.grant import TokenMint
from tracelake.domain.task import TaskState
from tracelake.runtime.coalesce import Coalesced
from tracelake.runtime.crash_points import crash_point
from tracelake.runtime.metrics import Metrics
from tracelake.store.queries import Row, fetch_rows, queries
from tracelake.store.tasks import fence_columns, is_over, not_current
from tracelake.wire.task.lifecycle import HeartbeatAnswer, HeartbeatRequest


@dataclass(frozen=True)
class Beat:
    request: HeartbeatRequest
    claims: Claims


class Renewal(Row, frozen=True):
    lease_expires_at: datetime | None
    """None: it was refused."""
    status: str | None
    canceled_at: datetime | None
    is_current: bool
    paused: bool
    draining: bool


@dataclass(frozen=True)
class Renewer:
    database: asyncpg.Pool
    tokens: TokenMint

    def batched(self, metrics: Metrics) -> Coalesced[Beat, HeartbeatAnswer]:
        """Heartbeats that arrive together are one statement."""
        return Coalesced(self.renew, key=lambda beat: beat.request.task_id, verb="heartbeat", metrics=metrics)

    async def renew(self, asked: Sequence[Beat]) -> list[HeartbeatAnswer | Exception]:
        crash_point("renew_lease.before_commit")
        renewals = await fetch_rows(
            self.database,
            queries("claim")["renew_leases"],
            Renewal,
            *fence_columns([beat.request for beat in asked]),
            [beat.request.progress for beat in asked],
        )
        crash_point("renew_lease.after_commit")
        return [await self._answer(beat, renewal) for beat, renewal in zip(asked, renewals, strict=True)]

    async def _answer(self, beat: Beat, renewal: Renewal) -> HeartbeatAnswer | Exception:
        if renewal.lease_expires_at is None:
            return _refusal(renewal)
        return HeartbeatAnswer(
            lease_expires_at=renewal.lease_expires_at,
            capability_token=await self.tokens.fresh_token(beat.claims),
            paused=renewal.paused or renewal.draining,
        )


def _refusal(renewal: Renewal) -> HeartbeatAnswer | Exception:
    if not renewal.is_current or renewal.status is None:
        return not_current()
    if renewal.status == TaskState.CANCELED and renewal.canceled_at is not None:
        return HeartbeatAnswer(lease_expires_at=renewal.canceled_at, canceled=True)
    return is_over(renewal.status)
