"""Shows the space that tables and datasets use, and what retention would delete. It reads statistics, not the store."""

from __future__ import annotations

from typing import Final
from uuid import UUID

import asyncpg

from tracelake.store.queries import queries
from tracelake.wire.user.usage import GenerationUsage, OldRows, TableUsage, Usage, UsageQuery

MOST_GENERATIONS: Final = 500


async def show_usage(pool: asyncpg.Pool, org_id: UUID, query: UsageQuery) -> Usage:
    sql = queries("usage")
    tables = await pool.fetch(sql["list_table_sizes"])
    generations = await pool.fetch(sql["list_generation_sizes"], org_id, MOST_GENERATIONS)
    older = await pool.fetch(sql["count_old_rows"], org_id, query.days)
    return Usage(
        tables=[TableUsage(**row) for row in tables],
        generations=[GenerationUsage(**row) for row in generations],
        days=query.days,
        older=[OldRows(**row) for row in older],
    )
