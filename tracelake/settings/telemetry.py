"""Settings of logs, metrics and traces; and, for tests, of crash points."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Literal

from pydantic import field_validator

from tracelake.domain.crash_points import POINTS
from tracelake.settings.base import Group, setting


class LogSettings(Group):
    """Logs."""

    level: Literal["debug", "info", "warning", "error"] = setting("info", "The lowest level that is logged.")
    format: Literal["json", "console"] = setting("json", "One JSON object a line, or lines for a terminal.")


class MetricsSettings(Group):
    """Figures for Prometheus. The Dispatcher and the Query service also serve them at their internal listeners."""

    port: int = setting(
        0,
        "A loopback listener for `/metrics` in every process; 0: none. `trace up` counts on from it, one a process.",
        unit="port",
        ge=0,
        le=65500,
    )


class TracingSettings(Group):
    """OpenTelemetry spans. Off, and not even imported, until there is somewhere to send them."""

    endpoint: str | None = setting(
        None,
        "Where spans go, by OTLP over HTTP, such as http://127.0.0.1:4318/v1/traces; unset: tracing is off.",
        unit="http(s):// URL",
        pattern=r"^https?://",
    )
    sample: float = setting(
        1.0, "The share of traces that is kept, decided where a trace begins.", unit="0 to 1", ge=0, le=1
    )


class FaultSettings(Group):
    """For our tests only: this process ends itself at a named place. Not read from files or the environment."""

    point: str | None = setting(None, "The crash point that ends this process; see docs/reference/crash_points.md.")
    nth: int = setting(1, "At which pass of that point.", unit="count", ge=1)
    how: Literal["kill", "stop"] = setting("kill", "SIGKILL, as a power cut; or SIGSTOP, until it is continued.")

    @field_validator("point")
    @classmethod
    def _is_one(cls, point: str | None) -> str | None:
        if point is not None and point not in POINTS:
            close = get_close_matches(point, POINTS, n=1)
            raise ValueError(f"there is no such crash point{f'; did you mean {close[0]}?' if close else ''}")
        return point
