"""Where the older rows of hot datasets lie: the files that a compaction made of them, in whichever generation.

A compaction that is changed begins a new generation, and the hot tables go on as they are. What was compacted before
lies in the former generation; together they are the cold side. Where several hold a number, the latest commit counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

import asyncpg

from tracelake.store.queries import queries


@dataclass(frozen=True)
class ColdCopy:
    """The cold side of a hot generation: these generations of one dataset, as of a commit of it."""

    generations: tuple[UUID, ...]
    commit: int


async def cold_copies(pool: asyncpg.Pool, hot_versions: Sequence[UUID]) -> Mapping[UUID, ColdCopy]:
    """By hot generation; one that nobody compacts is not there."""
    if not hot_versions:
        return {}
    rows = await pool.fetch(queries("relations")["cold_copies"], list(hot_versions))
    return {row["hot_version"]: ColdCopy(tuple(row["generations"]), row["commit"]) for row in rows}
