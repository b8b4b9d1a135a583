"""The runtimes of this system: what a DAG may name, and how a task gets to where it runs."""

from __future__ import annotations

from collections.abc import Mapping

from tracelake.domain.dag.catalog import RuntimeSpec
from tracelake.domain.dag.model import Retry, RunDefaults
from tracelake.settings import RuntimeSettings

INVOKERS = frozenset({"in_process", "queue", "function", "job_run"})
"""All that there are. What a Dispatcher does not have (`Control.invokers`), no job of its can be deployed for."""


def runtime_specs(
    runtimes: Mapping[str, RuntimeSettings], invokers: frozenset[str] = INVOKERS
) -> dict[str, RuntimeSpec]:
    return {
        name: RuntimeSpec(
            runtime.untrusted,
            _missing(name, runtime, invokers),
            _defaults(runtime),
            in_process=runtime.invoker == "in_process",
            has_workers=runtime.invoker == "queue",
            files_only=runtime.invoker == "job_run",
        )
        for name, runtime in runtimes.items()
    }


def _missing(name: str, runtime_settings: RuntimeSettings, invokers: frozenset[str]) -> str | None:
    if runtime_settings.invoker == "job_run" and runtime_settings.application is None:
        return f"runtime {name!r} has no application of EMR Serverless (runtimes.{name}.application)"
    if runtime_settings.invoker in invokers:
        return None
    return f"runtime {name!r} needs the invoker `{runtime_settings.invoker}`, which this system does not have"


def _defaults(runtime_settings: RuntimeSettings) -> RunDefaults:
    return RunDefaults(
        timeout_seconds=runtime_settings.timeout_seconds,
        heartbeat_timeout_seconds=runtime_settings.heartbeat_timeout_seconds,
        heartbeat_interval_seconds=runtime_settings.heartbeat_interval_seconds,
        max_attempts=runtime_settings.max_attempts,
        max_platform_failures=runtime_settings.max_platform_failures,
        retry=Retry(runtime_settings.retry_backoff_seconds, runtime_settings.retry_max_backoff_seconds),
    )
