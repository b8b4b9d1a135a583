"""Every DAG of an organisation, with the version that serves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from tracelake.dispatcher.control import Control
from tracelake.store.queries import queries


@dataclass(frozen=True)
class DagSummary:
    name: str
    active_version: UUID | None
    versions: int
    jobs: int
    """Of the active version; of the newest while none is active."""
    updated_at: datetime
    """When it was last deployed or activated."""


async def list_dags(control: Control, org_id: UUID) -> Sequence[DagSummary]:
    return [DagSummary(**row) for row in await control.pool.fetch(queries("dags")["list_dags"], org_id)]
