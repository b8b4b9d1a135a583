"""Stores refused identities in the audit: of the Dispatcher's own listener once a minute, and those that Gateways send.

An entry belongs to the organisation of the user or of the personal token; that of a stranger, to the platform admin's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import asyncpg
import msgspec

from tracelake.dispatcher.maintenance.loop import Periodic
from tracelake.store.queries import queries
from tracelake.wire.internal.refusals import STORED_EVERY_SECONDS, Refusal, RefusalCounts


async def store_refusals(pool: asyncpg.Pool, refusals: Sequence[Refusal]) -> int:
    stored: int = await pool.fetchval(queries("audit")["store_refusals"], msgspec.to_builtins(refusals))
    return stored


@dataclass(frozen=True)
class StoreRefusals(Periodic):
    every_seconds = STORED_EVERY_SECONDS

    pool: asyncpg.Pool
    counts: RefusalCounts

    async def once(self) -> int:
        """0, so that it is not called again before a minute has passed."""
        if taken := self.counts.take():
            try:
                await store_refusals(self.pool, taken)
            except BaseException:
                self.counts.put_back(taken)
                raise
        return 0
