"""Settings of the limits that an organisation has which has none of its own."""

from __future__ import annotations

from typing import Final

from tracelake.domain.flow.org_limits import LIMITS, MOST, LimitName
from tracelake.settings.base import Group, setting


def _default(name: LimitName) -> int | None:
    limit = LIMITS[name]
    default: int | None = setting(
        None, f"Of one organisation: {limit.about}; unset: no limit.", unit=limit.unit, ge=1, le=MOST
    )
    return default


class LimitSettings(Group):
    """Limits of each organisation for which `trace org limits` has set none."""

    tasks: int | None = _default("tasks")
    sandboxes: int | None = _default("sandboxes")
    functions: int | None = _default("functions")
    object_bytes: int | None = _default("object_bytes")
    queries: int | None = _default("queries")
    queries_waiting: int | None = _default("queries_waiting")
    query_seconds: int | None = _default("query_seconds")
    sessions: int | None = _default("sessions")


NO_LIMITS: Final = LimitSettings()
