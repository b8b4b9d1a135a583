"""What tests of the Dispatcher stand on: a Control over real databases, an organisation, and loops that are stepped."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import asyncpg

from trace_platform.adapters.queue_pg import PgQueue
from trace_platform.adapters.signer_pem import PemSigner
from trace_platform.dispatcher.control import Control
from trace_platform.settings import TokenSettings
from trace_platform.store.db import open_pool
from trace_platform.store.jobs import JobCache
from trace_platform.store.signing_keys import keep_keys


@dataclass(frozen=True)
class Org:
    """An organisation and its one user."""

    id: UUID
    user: UUID


@asynccontextmanager
async def control_for(
    state_dsn: str, queue_dsn: str, folder: Path, *, replica: str = "one", pool_size: int = 6
) -> AsyncIterator[Control]:
    """One replica. A second one on the same databases and folder is a second call with another name."""
    queue = PgQueue(queue_dsn)
    try:
        async with open_pool(state_dsn, name=f"test {replica}", max_size=pool_size) as pool:
            signer, tokens = PemSigner(folder / "keys"), TokenSettings()
            await keep_keys(pool, signer, tokens)
            yield Control(pool, queue, signer, tokens, JobCache(pool), replica)
    finally:
        await queue.close()


async def an_org(pool: asyncpg.Pool, slug: str = "acme") -> Org:
    org = await pool.fetchval("INSERT INTO orgs (name, slug) VALUES ($1, $1) RETURNING id", slug)
    user = await pool.fetchval(
        "INSERT INTO users (org_id, external_id, role) VALUES ($1, $2, 'admin') RETURNING id", org, f"test|{slug}"
    )
    return Org(org, user)
