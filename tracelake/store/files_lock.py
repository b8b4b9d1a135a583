"""Lets no file be deleted while a backup copies files: a lock in the state database.

Whoever deletes files shares the lock until the end of the transaction that records it. A backup takes it alone before
it takes its snapshot, and keeps it until all files are copied. It waits for deletions that have begun; those that come
later are skipped, and done by a later pass. The lock ends with the connection that holds it, however that ends.
"""

from __future__ import annotations

from typing import Any

import psycopg

from tracelake.store.queries import Queryable, queries


async def may_delete_files(database: Queryable) -> bool:
    """Whether no backup is being made; on a connection with a transaction, none begins before that ends."""
    return bool(await database.fetchval(queries("files_lock")["share"]))


def try_to_hold_files(connection: psycopg.Connection[Any]) -> bool:
    """Prevents deletions until the connection is closed. False: one is in progress."""
    ((held,),) = connection.execute(queries("files_lock")["hold"].encode()).fetchall()
    return bool(held)
