"""Stores in the audit that credentials for the object store were created for a task, before the task gets them.

The statement is also the check that the attempt still runs, so an entry costs no further round trip; those that are
asked for together are one statement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tracelake.domain.task import TaskState
from tracelake.errors import LeaseLost
from tracelake.runtime.coalesce import Coalesced
from tracelake.runtime.metrics import Metrics
from tracelake.store.queries import Queryable, fetch_column, queries
from tracelake.store.tasks import Fence, fence_columns, is_over, not_current


@dataclass(frozen=True)
class CredentialsEntry:
    """Which attempt gets credentials, for what, and from where it asked."""

    fence: Fence
    origin: str
    detail: dict[str, Any]


def batched_entries(database: Queryable, metrics: Metrics) -> Coalesced[CredentialsEntry, None]:
    return Coalesced(
        partial(store_credentials, database), key=lambda entry: entry.fence.task_id, verb="credentials", metrics=metrics
    )


async def store_credentials(database: Queryable, entries: Sequence[CredentialsEntry]) -> list[Exception | None]:
    """An entry for each attempt that is the current one and runs; for any other, why it gets nothing."""
    columns = [entry.origin for entry in entries], [entry.detail for entry in entries]
    fences = fence_columns([entry.fence for entry in entries])
    statuses = await fetch_column(database, queries("audit")["store_credentials"], *fences, *columns)
    return [_refusal(status) for status in statuses]


def _refusal(status: str | None) -> LeaseLost | None:
    if status is None:
        return not_current()
    return None if status == TaskState.RUNNING else is_over(status)
