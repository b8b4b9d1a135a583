"""The runtimes of this system: what a DAG may name, and how a task gets to where it runs."""

from __future__ import annotations

from collections.abc import Mapping

from tracelake.domain.dag.catalog import RuntimeSpec
from tracelake.domain.dag.model import Retry, RunDefaults
from tracelake.settings import RuntimeSettings

INVOKERS = frozenset({"in_process", "queue", "function"})
"""All that there are. What a Dispatcher does not have (`Control.invokers`), no job of its can be deployed for."""


def runtime_specs(
    runtimes: Mapping[str, RuntimeSettings], invokers: frozenset[str] = INVOKERS
) -> dict[str, RuntimeSpec]:
    return {
        name: RuntimeSpec(
            one.untrusted, _missing(name, one, invokers), _defaults(one), in_process=one.invoker == "in_process"
        )
        for name, one in runtimes.items()
    }


def _missing(name: str, one: RuntimeSettings, invokers: frozenset[str]) -> str | None:
    if one.invoker in invokers:
        return None
    return f"runtime {name!r} needs the invoker `{one.invoker}`, which this system does not have"


def _defaults(one: RuntimeSettings) -> RunDefaults:
    return RunDefaults(
        timeout_seconds=one.timeout_seconds,
        heartbeat_timeout_seconds=one.heartbeat_timeout_seconds,
        heartbeat_interval_seconds=one.heartbeat_interval_seconds,
        max_attempts=one.max_attempts,
        max_platform_failures=one.max_platform_failures,
        retry=Retry(one.retry_backoff_seconds, one.retry_max_backoff_seconds),
    )
