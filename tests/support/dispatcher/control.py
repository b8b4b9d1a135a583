"""A Dispatcher's Control over real databases, an organisation, and loops that a test steps."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
from pydantic import BaseModel, ConfigDict, SecretStr

from tests.support.verbs import activate_dag, deploy_dag
from tracelake.adapters.objects_disk import DiskObjects
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.dags.deploy import Deployed
from tracelake.domain.access.seal import Seal
from tracelake.domain.dag.catalog import Count, OperatorSpec, checked_by, every_input
from tracelake.domain.dag.model import SourceKind, Storage
from tracelake.settings import QueueSettings, TokenSettings, load_settings
from tracelake.store.db import open_pool
from tracelake.store.identity import User
from tracelake.store.jobs import JobCache
from tracelake.store.signing_keys import maintain_keys
from tracelake.wiring import open_queue, open_signer


@dataclass(frozen=True)
class Org:
    """An organisation and its one user."""

    id: UUID
    user: UUID
    slug: str = "acme"

    @property
    def as_user(self) -> User:
        return User(self.user, self.id, self.slug, None, "admin")


@asynccontextmanager
async def control_for(
    state_dsn: str,
    queue: str | QueueSettings,
    folder: Path,
    *,
    replica: str = "one",
    pool_size: int = 6,
    tokens: TokenSettings | None = None,
    seal: Seal | None = None,
) -> AsyncIterator[Control]:
    """One replica. A second one on the same databases and folder is a second call with another name.

    `queue`: the DSN of a database, or the settings of a queue elsewhere. `tokens`: keys that are not in the folder.
    `seal`: with the keys of stored secrets; without it there are none.
    """
    chosen = QueueSettings(dsn=SecretStr(queue)) if isinstance(queue, str) else queue
    tokens = tokens or TokenSettings(key_folder=folder / "keys")
    settings = load_settings({}, home=folder).model_copy(update={"queue": chosen, "tokens": tokens})
    async with (
        open_queue(settings) as opened,
        open_signer(settings) as signer,
        open_pool(state_dsn, name=f"test {replica}", max_size=pool_size) as pool,
        open_pool(state_dsn, name=f"test {replica} hot", max_size=pool_size, steady=True) as hot,
    ):
        await maintain_keys(pool, signer, tokens)
        objects = DiskObjects(folder / "objects")
        jobs = JobCache(pool)
        yield Control(pool, opened, signer, tokens, jobs, objects, replica, steady=hot, seal=seal or Seal())


async def an_org(pool: asyncpg.Pool, slug: str = "acme") -> Org:
    org = await pool.fetchval("INSERT INTO orgs (name, slug) VALUES ($1, $1) RETURNING id", slug)
    user = await pool.fetchval(
        "INSERT INTO users (org_id, external_id, role) VALUES ($1, $2, 'admin') RETURNING id", org, f"test|{slug}"
    )
    return Org(org, user, slug)


async def run_here(control: Control) -> None:
    """Drains the outbox until it is empty, and runs the Dispatcher's own jobs with it."""
    drain = control.drain()
    while await drain.once():
        pass


async def deployed_and_active(control: Control, org: Org, text: str) -> Deployed:
    done = await deploy_dag(control, org.id, org.user, text)
    await activate_dag(control, org.id, done.dag_name, done.dag_version_id)
    return done


class Anything(BaseModel):
    """A config that takes whatever it is given."""

    model_config = ConfigDict(extra="allow")


PULL = OperatorSpec(
    checked_by(Anything),
    frozenset({"ecs_platform"}),
    source_kinds=frozenset(SourceKind),
    forwards=True,
    outputs=Count(1, 3),
    storages=(Storage.PARQUET, Storage.BUFFERED, Storage.POSTGRES),
    narrows=every_input,
)
"""An operator of the workers, for tests: a source of any kind that only emits events, or reactive."""
WORKS = replace(PULL, forwards=False)
"""The same, where what fires a source makes a task of it."""

NOTHING: Any = None  # the routes of an API are known without the services behind it
HOLLOW = Control(NOTHING, NOTHING, NOTHING, TokenSettings(), NOTHING, NOTHING, "docs")
