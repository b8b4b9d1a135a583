"""A follower's outbox: what it owes the Dispatcher, put in the transaction of its rows.

`advance` and `announce` go with `rewrite`; after the commit each of `untold` is told, and then `told`. A kill in
between only means telling again, which is harmless. Every transaction begins with the lock of the source, which is
refused to a run that a later one has followed: its lease is lost, whether it has heard so or not.
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
    """One attempt of one long task; of two, the later has the higher id or attempt."""

    run_id: UUID
    attempt: int


@dataclass(frozen=True)
class Progress:
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


def lock_source(connection: psycopg.Connection[Any], source: str, run: FollowerRun) -> Progress:
    """How far the source has come; until the transaction ends, nobody else moves it."""
    return Progress(*_lock(connection, source, run)[:2])


def begin(connection: psycopg.Connection[Any], source: str, run: FollowerRun) -> bool:
    """The same lock; whether an attempt of this run has had it before."""
    return bool(_lock(connection, source, run)[2])


def _lock(connection: psycopg.Connection[Any], source: str, run: FollowerRun) -> tuple[Any, ...]:
    values = {"source": source, "run_id": run.run_id, "attempt": run.attempt}
    row: tuple[Any, ...] | None = connection.execute(statements("announce")["lock_source"], values).fetchone()
    if row is None:
        raise LeaseLost(
            f"attempt {run.attempt} of this source has been followed by a later one",
            where=source,
            hint="nothing is to be done: the later one writes",
        )
    return row


def bound_idleness(connection: psycopg.Connection[Any]) -> None:
    connection.execute(statements("announce")["bound_idleness"])


def advance(connection: psycopg.Connection[Any], source: str, progress: Progress) -> None:
    values = {"source": source, "announced_to": progress.announced_to, "finalized_to": progress.finalized_to}
    connection.execute(statements("announce")["advance"], values)


def announce(
    connection: psycopg.Connection[Any], source: str, kind: Kind, *, start: int, stop: int, cause: str = ""
) -> None:
    values = {"source": source, "kind": kind, "start": start, "stop": stop, "cause": cause}
    connection.execute(statements("announce")["announce"], values)


def untold(connection: psycopg.Connection[Any], source: str, count: int = 100) -> list[Announcement]:
    """The oldest first: an invalidation is told before what came after it."""
    rows = connection.execute(statements("announce")["untold"], {"source": source, "count": count}).fetchall()
    return [Announcement(*row) for row in rows]


def final_before(
    connection: psycopg.Connection[Any], source: str, now: int | None, owed: Sequence[Announcement]
) -> list[tuple[Announcement, int | None]]:
    """Each with the last block that was final before it: what became so later was never anybody's to take back.

    `owed` may be only the first of what is left to tell.
    """
    values = {"source": source, "id": owed[-1].id}
    row = connection.execute(statements("announce")["next_final"], values).fetchone()
    last = now if row is None or row[0] is None else row[0] - 1
    found = list[tuple[Announcement, int | None]]()
    for item in reversed(owed):
        last = item.start - 1 if item.kind == "final" else last
        found.append((item, last))
    return found[::-1]


def told(connection: psycopg.Connection[Any], source: str, announcements: Sequence[Announcement]) -> None:
    ids = [announcement.id for announcement in announcements]
    connection.execute(statements("announce")["told"], {"source": source, "ids": ids})


def delete_source(connection: psycopg.Connection[Any], source: str) -> None:
    """The source begins anew, and owes nothing."""
    connection.execute(statements("announce")["delete_source"], {"source": source})


def followed(connection: psycopg.Connection[Any], source: str, last: int, count: int) -> list[tuple[int, bytes]]:
    """Number and hash of the blocks written up to `last`, the highest first."""
    values = {"source": source, "last": last, "count": count}
    rows = connection.execute(statements("announce")["followed"], values).fetchall()
    return [(number, bytes(hash_)) for number, hash_ in rows]


def first_followed(connection: psycopg.Connection[Any], source: str) -> int | None:
    row = connection.execute(statements("announce")["first_followed"], {"source": source}).fetchone()
    return None if row is None else row[0]


def remember_followed(connection: psycopg.Connection[Any], source: str, first: int, hashes: Sequence[bytes]) -> None:
    """The chain from `first` on is now this."""
    connection.execute(statements("announce")["forget_followed"], {"source": source, "first": first})
    numbers = list(range(first, first + len(hashes)))
    values = {"source": source, "numbers": numbers, "hashes": list(hashes)}
    connection.execute(statements("announce")["remember_followed"], values)
