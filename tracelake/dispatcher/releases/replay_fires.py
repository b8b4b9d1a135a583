"""Replays what fired sources to another version of them, which writes other generations: nothing is fired again.

A changed manual, cron or webhook source of a release gets the fires that the version before it had, from the store:
what it writes of them is a generation of its own. A switch, to the release or back, replays what is still missing.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from tracelake.store.queries import Connection, queries

AT_ONCE: Final = 5_000
"""Tasks, and events, that one statement creates."""


async def replay_to_release(connection: Connection, release_id: UUID) -> int:
    """While it is built; how many were left, at most: 0, and it has all."""
    sql = queries("releases")["replay_fires"]
    return int(await connection.fetchval(sql, release_id, False, AT_ONCE, False))  # noqa: FBT003 - arguments of SQL


async def replay_before_switch(connection: Connection, release_id: UUID, *, back: bool) -> None:
    """All that is missing, in the transaction of the switch, with fires whose tasks it cancels."""
    sql = queries("releases")["replay_fires"]
    while await connection.fetchval(sql, release_id, back, AT_ONCE, True):  # noqa: FBT003
        pass
