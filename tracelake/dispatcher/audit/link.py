"""Links entries of the audit into the chains of their organisations, in batches; and cuts what is too old.

A call only inserts its entry, so no call waits for another's. One process at a time gives entries their places: each
hash covers the one before it, so an entry that is changed, removed, moved or inserted afterwards does not fit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

import asyncpg

from tracelake.dispatcher.maintenance.loop import Periodic
from tracelake.store.queries import Connection, Row, fetch_rows, queries

BATCH = 1_000


class Unlinked(Row, frozen=True):
    id: UUID
    org_id: UUID
    text: str


class ChainEnd(Row, frozen=True):
    org_id: UUID
    seq: int
    hash: bytes


def link_hash(before: bytes, text: str) -> bytes:
    return hashlib.sha256(before + text.encode()).digest()


@dataclass(frozen=True)
class LinkAudit(Periodic):
    pool: asyncpg.Pool

    async def once(self) -> int:
        async with self.pool.acquire() as connection, connection.transaction():
            await connection.execute(queries("audit")["lock_chains"])
            entries = await fetch_rows(connection, queries("audit")["list_unlinked"], Unlinked, BATCH)
            if entries:
                await _link(connection, entries)
        return len(entries)


@dataclass(frozen=True)
class PruneAuditEntries(Periodic):
    """Deletes entries that are older than they are kept; the hash of the last one stays, so the rest is verifiable."""

    every_seconds = 60.0

    pool: asyncpg.Pool
    keep: timedelta

    async def once(self) -> int:
        if not self.keep:
            return 0
        async with self.pool.acquire() as connection, connection.transaction():
            await connection.execute(queries("audit")["lock_chains"])
            await connection.execute(queries("audit")["cut_chains"], self.keep, BATCH)
            return int(await connection.fetchval(queries("audit")["delete_cut"]))


async def _link(connection: Connection, entries: Sequence[Unlinked]) -> None:
    orgs = list({entry.org_id for entry in entries})
    known = await fetch_rows(connection, queries("audit")["list_ends"], ChainEnd, orgs)
    ends = {org: ChainEnd(org, 0, b"") for org in orgs} | {end.org_id: end for end in known}
    places = []
    for entry in entries:
        before = ends[entry.org_id]
        end = ChainEnd(entry.org_id, before.seq + 1, link_hash(before.hash, entry.text))
        ends[entry.org_id] = end
        places.append((entry.id, end.seq, end.hash))
    news = [(end.org_id, end.seq, end.hash) for end in ends.values()]
    columns = [list(column) for rows in (places, news) for column in zip(*rows, strict=True)]
    await connection.execute(queries("audit")["link_entries"], *columns)
