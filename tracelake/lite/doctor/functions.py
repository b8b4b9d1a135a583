"""Whether what runs tasks elsewhere is there: the runner function on AWS Lambda, applications of EMR Serverless."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tracelake.errors import TraceError
from tracelake.lite.doctor.run import Finding
from tracelake.settings import Settings
from tracelake.wiring import make_job_runner, make_lambda

if TYPE_CHECKING:
    from tracelake.ports import RunnerFunction


def examine_functions(settings: Settings) -> list[Finding]:
    return [asyncio.run(_function(settings))] if settings.udf.invoker == "lambda" else []


def examine_job_runs(settings: Settings) -> list[Finding]:
    """Of each runtime that has an application."""
    return asyncio.run(_applications(settings))


async def _applications(settings: Settings) -> list[Finding]:
    findings = []
    for name, runtime in settings.runtimes.items():
        if runtime.application is None:
            continue
        about = f"runtime {name}: application {runtime.application} of EMR Serverless"
        try:
            found = await _application(settings, name)
        except TraceError as wrong:
            findings.append(Finding("job runs", ok=False, found=f"{about}: {wrong.message}", fix=wrong.hint))
        else:
            findings.append(Finding("job runs", ok=True, found=f"{about}: {found}"))
    return findings


async def _application(settings: Settings, runtime: str) -> str:
    runner = make_job_runner(settings, runtime)
    try:
        return await runner.examine()
    finally:
        await runner.close()


async def _function(settings: Settings) -> Finding:
    try:
        found = await _examined(settings)
    except TraceError as wrong:
        return Finding("functions", ok=False, found=wrong.message, fix=wrong.hint)
    about = f"{settings.udf.lambda_function} on Lambda: {found.runtime}, {found.memory_mb} MB, {found.seconds} s"
    longer = _longer(settings, found.seconds)
    if not longer:
        return _quota(settings, found, about)
    fix = f"set runtimes.{longer[0]}.timeout_seconds to less than {found.seconds}, or raise the function's timeout"
    return Finding("functions", ok=None, found=f"{about}; tasks of {', '.join(longer)} may run longer", fix=fix)


def _quota(settings: Settings, found: RunnerFunction, about: str) -> Finding:
    """Calls beyond what Lambda runs at once are throttled: no attempt, but a task that waits."""
    wanted = settings.dispatcher.functions
    if isinstance(found.at_once, str):
        fix = "allow the action lambda:GetAccountSettings to whoever runs this check"
        return Finding("functions", None, f"{about}; how many may run at once is not known: {found.at_once}", fix)
    if found.at_once >= wanted:
        return Finding("functions", ok=True, found=f"{about}, {found.at_once} at once")
    fix = f"raise its reserved concurrency, or the quota `Concurrent executions` of Lambda, to {wanted} or more"
    return Finding(
        "functions", None, f"{about}; {found.at_once} may run at once, and dispatcher.functions is {wanted}", fix
    )


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
