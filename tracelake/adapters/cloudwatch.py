"""Figures to CloudWatch, by PutMetricData."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from tracelake.adapters.aws.service import AwsService
from tracelake.domain.figure import Figure
from tracelake.errors import ServiceUnavailable, SettingsError
from tracelake.settings import MetricsSettings

AT_ONCE: Final = 150
"""Figures of one request. CloudWatch takes 1,000 and 1 MB, which figures with the longest labels stay below."""
SMALLEST: Final = 2.0**-360
LARGEST: Final = 2.0**360
"""CloudWatch refuses a request with a value whose size is not between these."""
LONGEST_LABEL: Final = 1024


class CloudWatch:
    """Belongs to one event loop."""

    def __init__(self, settings: MetricsSettings) -> None:
        """Opens nothing yet."""
        if settings.cloudwatch_namespace is None:
            hint = "such as Trace/production"
            raise SettingsError("there is no namespace for figures", where="metrics.cloudwatch_namespace", hint=hint)
        self._namespace = settings.cloudwatch_namespace
        self._aws = AwsService(
            "cloudwatch",
            settings.cloudwatch_region,
            settings.cloudwatch_endpoint,
            unavailable=ServiceUnavailable,
            longest_wait=0.0,
            connections=1,
        )

    async def put(self, figures: Sequence[Figure]) -> None:
        now = datetime.now(UTC)
        for batch in _batches([_datum(figure, now) for figure in figures]):
            await self._aws.call("put_metric_data", Namespace=self._namespace, MetricData=batch)

    async def close(self) -> None:
        await self._aws.close()


def _batches(data: Sequence[dict[str, Any]]) -> Iterator[Sequence[dict[str, Any]]]:
    return (data[start : start + AT_ONCE] for start in range(0, len(data), AT_ONCE))


def _datum(figure: Figure, now: datetime) -> dict[str, Any]:
    labels = figure.labels.items()
    return {
        "MetricName": figure.name,
        "Dimensions": [{"Name": name, "Value": _dimension(value)} for name, value in labels],
        "Timestamp": now,
        "Value": _value(figure.value),
        "Unit": _unit(figure.name),
    }


def _dimension(value: str) -> str:
    """CloudWatch takes ASCII, and no empty or blank text."""
    text = value.encode("ascii", "replace").decode()[:LONGEST_LABEL]
    return text if text.strip() and text.isprintable() and not text.startswith(":") else f"-{text!r}"[:LONGEST_LABEL]


def _value(value: float) -> float:
    if not abs(value) >= SMALLEST:  # also NaN
        return 0.0
    return max(-LARGEST, min(float(value), LARGEST))


def _unit(name: str) -> str:
    if name.endswith("per_second"):
        return "Count/Second"
    return "Seconds" if name.endswith("_seconds") else "Bytes" if name.endswith("_bytes") else "Count"
