"""Settings of logs, metrics and traces; and, for tests, of crash points."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Literal, Self

from pydantic import field_validator, model_validator

from tracelake.domain.crash_points import POINTS
from tracelake.settings.base import URL, Group, setting


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
    cloudwatch_namespace: str | None = setting(
        None,
        "CloudWatch's namespace for the gauges of the Dispatcher, such as Trace/production; unset: none are sent.",
        pattern=r"^[A-Za-z0-9._/#-]{1,255}$",
    )
    cloudwatch_region: str = setting("us-east-1", "The region of that namespace.", pattern=r"^[a-z0-9-]+$")
    cloudwatch_endpoint: str | None = setting(None, "The server of CloudWatch; unset: AWS.", unit="URL", pattern=URL)
    cloudwatch_seconds: float = setting(
        60.0, "How often gauges are sent: alarms look at periods of a minute or more.", unit="s", ge=1, le=3600
    )
    cloudwatch_series: int = setting(
        1000,
        "The most series that are sent each time, since CloudWatch charges for each: those with the largest values.",
        unit="count",
        ge=50,
        le=100_000,
    )

    @model_validator(mode="after")
    def _of_cloudwatch(self) -> Self:
        fields = [name for name in type(self).model_fields if name.startswith("cloudwatch_")]
        given = [name for name in fields if getattr(self, name) != type(self).model_fields[name].default]
        if given and self.cloudwatch_namespace is None:
            raise ValueError(f"{given[0]} has no effect without cloudwatch_namespace")
        if (self.cloudwatch_namespace or "").startswith("AWS/"):
            raise ValueError("cloudwatch_namespace cannot begin with AWS/: those are of AWS itself")
        return self


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
