"""Groups the verbs in `trace --help`, in the order in which a new user needs them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typer.core import TyperGroup

if TYPE_CHECKING:
    from collections.abc import Mapping

GROUPS: Mapping[str, tuple[str, ...]] = {
    "Start here": ("up", "down", "demo", "devchain", "status", "doctor"),
    "Work with your data": ("dag", "plan", "deploy", "release", "datasets", "query", "diff", "verify", "udf", "alert"),
    "See and steer what runs": ("task", "why", "job", "source", "trigger", "invalidate", "gaps", "backfill"),
    "Say who may do what": ("user", "role", "org", "secret", "service-token", "audit"),
    "Operate a system": ("config", "db", "backup", "restore", "outbox", "queue", "token"),
    "The processes, one by one (`trace up` starts them all)": (
        "dispatcher",
        "gateway",
        "worker",
        "runner",
        "sink",
        "scheduler",
        "delivery",
    ),
}
"""A test checks that every verb is in a group."""


class GroupedHelp(TyperGroup):
    """Typer keeps commands and groups in two lists, so their order must be given again."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        del ctx
        wide = max(map(len, self.commands))
        for title, names in GROUPS.items():
            with formatter.section(title):
                # No limit: long texts are wrapped, not cut off.
                rows = [(name.ljust(wide), self.commands[name].get_short_help_str(1000)) for name in names]
                formatter.write_dl(rows)
