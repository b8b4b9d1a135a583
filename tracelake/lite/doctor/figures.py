"""Whether CloudWatch takes figures. It has no dry run: one figure, `trace_doctor`, is stored."""

from __future__ import annotations

import asyncio

from tracelake.domain.figure import Figure
from tracelake.errors import TraceError
from tracelake.lite.doctor.run import Finding
from tracelake.settings import Settings
from tracelake.wiring import open_figures


def examine_figures(settings: Settings) -> list[Finding]:
    return [asyncio.run(_figures(settings))] if settings.metrics.cloudwatch_namespace else []


async def _figures(settings: Settings) -> Finding:
    try:
        async with open_figures(settings) as figures:
            if figures is not None:
                await figures.put([Figure("trace_doctor", 1.0)])
    except TraceError as wrong:
        return Finding("metrics", ok=False, found=wrong.message, fix=wrong.hint)
    where = f"{settings.metrics.cloudwatch_namespace} of CloudWatch in {settings.metrics.cloudwatch_region}"
    return Finding("metrics", ok=True, found=where)
