"""What an organisation's use can be limited of: names, units, and what happens at each limit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

LimitName = Literal[
    "tasks", "sandboxes", "functions", "object_bytes", "queries", "queries_waiting", "query_seconds", "sessions"
]
LIMIT_NAMES: Final[tuple[LimitName, ...]] = get_args(LimitName)
MOST: Final = 2**62
"""The largest number that a limit may be."""


@dataclass(frozen=True)
class OrgLimit:
    unit: str
    about: str
    """What counts, for documents and errors."""


LIMITS: Final[dict[LimitName, OrgLimit]] = {
    "tasks": OrgLimit("tasks", "tasks in flight: woken or running; always-on sources do not count"),
    "sandboxes": OrgLimit("tasks", "of those, tasks of untrusted runtimes, each of which has a sandbox to itself"),
    "functions": OrgLimit("tasks", "of those, tasks of `runtime: lambda`"),
    "object_bytes": OrgLimit("bytes", "bytes in the object store: files of datasets, bundles, batches"),
    "queries": OrgLimit("queries", "queries that run at once in one Query service"),
    "queries_waiting": OrgLimit("queries", "queries that wait in one Query service because `queries` run"),
    "query_seconds": OrgLimit("s", "seconds that its queries may run in a minute, added up, in one Query service"),
    "sessions": OrgLimit("sessions", "Spark sessions that one Query service keeps for its callers"),
}
