"""A heartbeat: extends the lease, and answers whether the task was canceled or is to pause.

An attempt that has lost its lease is refused, and never gets it back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import asyncpg

from tracelake.capability.claims import Claims, mint, new_claims, renewal_due
from tracelake.dispatcher.control import Control
from tracelake.domain.task import TaskState
from tracelake.runtime.coalesce import Coalesced
from tracelake.runtime.crash_points import crash_point
from tracelake.store.queries import queries
from tracelake.store.tasks import fence_columns, is_over, not_current
from tracelake.wire.task_messages import HeartbeatAnswer, HeartbeatRequest


@dataclass(frozen=True)
class Beat:
    request: HeartbeatRequest
    claims: Claims


def renewer(control: Control) -> Coalesced[Beat, HeartbeatAnswer]:
    async def run(asked: Sequence[Beat]) -> Sequence[HeartbeatAnswer | Exception]:
        return await renew_leases(control, asked)

    return Coalesced(run, key=lambda beat: beat.request.task_id, verb="heartbeat", metrics=control.metrics)


async def renew_leases(control: Control, asked: Sequence[Beat]) -> list[HeartbeatAnswer | Exception]:
    crash_point("renew_lease.before_commit")
    rows = await control.hot.fetch(
        queries("claim")["renew_leases"],
        *fence_columns([beat.request for beat in asked]),
        [beat.request.progress for beat in asked],
    )
    crash_point("renew_lease.after_commit")
    return [await _answer(control, beat, row) for beat, row in zip(asked, rows, strict=True)]


async def _answer(control: Control, beat: Beat, row: asyncpg.Record) -> HeartbeatAnswer | Exception:
    if row["lease_expires_at"] is None:
        return _refusal(row)
    return HeartbeatAnswer(
        lease_expires_at=row["lease_expires_at"],
        capability_token=await _fresh_token(control, beat.claims),
        paused=row["paused"] or row["draining"],
    )


def _refusal(row: asyncpg.Record) -> HeartbeatAnswer | Exception:
    if row["is_current"] and row["status"] == TaskState.CANCELED:
        return HeartbeatAnswer(lease_expires_at=row["canceled_at"], canceled=True)
    return is_over(row["status"]) if row["is_current"] else not_current()


async def _fresh_token(control: Control, claims: Claims) -> str | None:
    """Past half its life (S14), with the same grants. Losing the answer does no harm: the next one carries another."""
    now = control.clock()
    if not renewal_due(claims, now):
        return None
    fresh = new_claims(
        issuer=claims.iss,
        org_id=claims.org_id,
        task_id=claims.task_id,
        attempt=claims.attempt,
        datasets=claims.datasets,
        s3=claims.s3,
        # The same life as the old one had.
        timeout_seconds=None,
        now=now,
        max_life_seconds=claims.exp - claims.iat,
    )
    return await mint(control.signer, fresh)
