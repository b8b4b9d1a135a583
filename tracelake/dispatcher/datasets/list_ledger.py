"""Lists the ledger of a dataset, a page of commits at a time, for a user who may see the dataset."""

from __future__ import annotations

import asyncpg
import msgspec

from tracelake.dispatcher.datasets.show import find_dataset
from tracelake.store.identity import User
from tracelake.store.queries import Row, fetch_column, find_row, queries
from tracelake.wire.user.ledger import LedgerEntry, LedgerPage, LedgerQuery


class LedgerEnds(Row, frozen=True):
    last_commit: int = 0
    last_hash: str | None = None
    before_hash: str | None = None


async def list_ledger(pool: asyncpg.Pool, user: User, name_or_uuid: str, query: LedgerQuery) -> LedgerPage:
    dataset = await find_dataset(pool, user, name_or_uuid)
    sql = queries("ledger")
    # The ends first: commits that are made meanwhile are on a later page.
    ends = await find_row(pool, sql["find_ends"], LedgerEnds, dataset, query.after) or LedgerEnds()
    records = await fetch_column(pool, sql["list_entries"], dataset, query.after, query.limit, ends.last_commit)
    entries = [msgspec.json.decode(entry, type=LedgerEntry) for entry in records]
    last = entries[-1].commit if entries else ends.last_commit
    return LedgerPage(
        dataset_uuid=dataset,
        last_commit=ends.last_commit,
        last_hash=ends.last_hash,
        before_hash=ends.before_hash,
        entries=entries,
        next=last if last < ends.last_commit else None,
    )
