"""Whether the runner function on AWS Lambda is there and may be called; the runner of this machine is a process."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tracelake.errors import TraceError
from tracelake.lite.doctor.run import Finding
from tracelake.settings import Settings
from tracelake.wiring import make_lambda

if TYPE_CHECKING:
    from tracelake.ports import RunnerFunction


def examine_functions(settings: Settings) -> list[Finding]:
    return [asyncio.run(_function(settings))] if settings.udf.invoker == "lambda" else []


async def _function(settings: Settings) -> Finding:
    try:
        found = await _examined(settings)
    except TraceError as wrong:
        return Finding("functions", ok=False, found=wrong.message, fix=wrong.hint)
    about = f"{settings.udf.lambda_function} on Lambda: {found.runtime}, {found.memory_mb} MB, {found.seconds} s"
    longer = _longer(settings, found.seconds)
    if not longer:
        return Finding("functions", ok=True, found=about)
    fix = f"set runtimes.{longer[0]}.timeout_seconds to less than {found.seconds}, or raise the function's timeout"
    return Finding("functions", ok=None, found=f"{about}; tasks of {', '.join(longer)} may run longer", fix=fix)


async def _examined(settings: Settings) -> RunnerFunction:
    invoker = make_lambda(settings)
    try:
        return await invoker.examine()
    finally:
        await invoker.close()


def _longer(settings: Settings, seconds: int) -> list[str]:
    """Runtimes whose tasks have more time than Lambda gives the function."""
    runtimes = settings.runtimes.items()
    return [name for name, runtime in runtimes if runtime.invoker == "function" and runtime.timeout_seconds > seconds]
