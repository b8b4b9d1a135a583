"""Settings that say how long rows and generations are kept."""

from __future__ import annotations

from tracelake.settings.base import Group, setting


class RetentionSettings(Group):
    """How long is kept what would grow for ever. 0: for ever."""

    tasks_days: int = setting(
        30,
        "How long tasks that ended are kept, if nothing refers to them and their key cannot come again; and attempts"
        " before the last one.",
        unit="days",
        ge=0,
        le=36500,
    )
    events_days: int = setting(
        30,
        "How long events of tasks are kept that were routed and whose commit is no longer current.",
        unit="days",
        ge=0,
        le=36500,
    )
    invalidations_days: int = setting(
        90, "How long invalidations are kept that every reader has processed.", unit="days", ge=0, le=36500
    )
    publishes_days: int = setting(
        30,
        "How long records of batches are kept whose rows were committed; longer than `sink.applied_kept_days` in any"
        " case.",
        unit="days",
        ge=0,
        le=36500,
    )
    pauses_days: int = setting(90, "How long pauses that ended are kept.", unit="days", ge=0, le=36500)
    audit_days: int = setting(
        400,
        "How long entries of the audit are kept; the hash of the last one that was deleted stays.",
        unit="days",
        ge=0,
        le=36500,
    )
    exports_days: int = setting(
        30,
        "How long users' exports are kept; an export whose audit row is deleted before stays.",
        unit="days",
        ge=0,
        le=36500,
    )
    left_generations_days: int = setting(
        7,
        "How long a generation of files is kept that no active version serves any more.",
        unit="days",
        ge=0,
        le=36500,
    )
