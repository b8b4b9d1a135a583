"""A follower's outbox: the events for the Dispatcher, written in the transaction of its rows.

`advance` and `announce` go with `rewrite`; after the commit each of `unsent_entries` is sent, then `mark_sent`. A kill
in between sends it again, which is harmless. Every transaction begins with the lock of the source, which is refused to
a run that a later one has superseded: it has lost its lease, even if it does not know it yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

import psycopg

from tracelake.data.statements import statements
from tracelake.errors import LeaseLost

Kind = Literal["event", "invalidation", "final"]


@dataclass(frozen=True)
class FollowerRun:
    """An attempt of a long task; the later of two has the higher id or attempt."""

    run_id: UUID
    attempt: int


@dataclass(frozen=True)
class FollowerProgress:
    """Last block written, and last block that is final; None before the first."""

    announced_to: int | None
    finalized_to: int | None


@dataclass(frozen=True)
class Announcement:
    """Numbers `start` to before `stop`."""

    id: int
    kind: Kind
    start: int
    stop: int
    cause: str


def lock_source(connection: psycopg.Connection[Any], source: str, run: FollowerRun) -> FollowerProgress:
    """Return how far the source has come, and lock it until the transaction ends."""
    return FollowerProgress(*_lock(connection, source, run)[:2])


def begin(connection: psycopg.Connection[Any], source: str, run: FollowerRun) -> bool:
    """Take the same lock; return whether an attempt of this run has had it before."""
    return bool(_lock(connection, source, run)[2])


def _lock(connection: psycopg.Connection[Any], source: str, run: FollowerRun) -> tuple[Any, ...]:
    values = {"source": source, "run_id": run.run_id, "attempt": run.attempt}
    row: tuple[Any, ...] | None = connection.execute(statements("follower_outbox")["lock_source"], values).fetchone()
    if row is None:
        raise LeaseLost(
            f"attempt {run.attempt} of this source was superseded by a later one",
            where=source,
            hint="nothing to do: the later one writes",
        )
    return row


def bound_idleness(connection: psycopg.Connection[Any]) -> None:
    connection.execute(statements("follower_outbox")["bound_idleness"])


def advance(connection: psycopg.Connection[Any], source: str, progress: FollowerProgress) -> None:
    values = {"source": source, "announced_to": progress.announced_to, "finalized_to": progress.finalized_to}
    connection.execute(statements("follower_outbox")["advance"], values)


def announce(
    connection: psycopg.Connection[Any], source: str, kind: Kind, *, start: int, stop: int, cause: str = ""
) -> None:
    values = {"source": source, "kind": kind, "start": start, "stop": stop, "cause": cause}
    connection.execute(statements("follower_outbox")["announce"], values)


def unsent_entries(connection: psycopg.Connection[Any], source: str, count: int = 100) -> list[Announcement]:
    """Return the oldest first: an invalidation is sent before what follows it."""
    rows = connection.execute(statements("follower_outbox")["unsent"], {"source": source, "count": count}).fetchall()
    return [Announcement(*row) for row in rows]


def final_before(
    connection: psycopg.Connection[Any], source: str, now: int | None, unsent: Sequence[Announcement]
) -> list[tuple[Announcement, int | None]]:
    """Return each with the last block that was final before it: no later block was ever invalidated.

    `unsent` may be only the first of the unsent entries.
    """
    values = {"source": source, "id": unsent[-1].id}
    row = connection.execute(statements("follower_outbox")["next_final"], values).fetchone()
    last = now if row is None or row[0] is None else row[0] - 1
    pairs = list[tuple[Announcement, int | None]]()
    for announcement in reversed(unsent):
        last = announcement.start - 1 if announcement.kind == "final" else last
        pairs.append((announcement, last))
    return pairs[::-1]


def mark_sent(connection: psycopg.Connection[Any], source: str, announcements: Sequence[Announcement]) -> None:
    ids = [announcement.id for announcement in announcements]
    connection.execute(statements("follower_outbox")["mark_sent"], {"source": source, "ids": ids})


def delete_source(connection: psycopg.Connection[Any], source: str) -> None:
    """Reset the source and its outbox."""
    connection.execute(statements("follower_outbox")["delete_source"], {"source": source})


def followed(connection: psycopg.Connection[Any], source: str, last: int, count: int) -> list[tuple[int, bytes]]:
    """Return number and hash of the blocks written up to `last`, the highest first."""
    values = {"source": source, "last": last, "count": count}
    rows = connection.execute(statements("follower_outbox")["followed"], values).fetchall()
    return [(number, bytes(hash_)) for number, hash_ in rows]


def first_followed(connection: psycopg.Connection[Any], source: str) -> int | None:
    row = connection.execute(statements("follower_outbox")["first_followed"], {"source": source}).fetchone()
    return None if row is None else row[0]


def remember_followed(connection: psycopg.Connection[Any], source: str, first: int, hashes: Sequence[bytes]) -> None:
    """Replace the chain from `first` on."""
    connection.execute(statements("follower_outbox")["delete_followed"], {"source": source, "first": first})
    numbers = list(range(first, first + len(hashes)))
    values = {"source": source, "numbers": numbers, "hashes": list(hashes)}
    connection.execute(statements("follower_outbox")["insert_followed"], values)
