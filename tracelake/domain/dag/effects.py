"""Fields that have no effect for this job: each is a warning at its place.

A value that asks for what happens anyway (`idle_timeout: never`, `priority: normal`) is no reason to warn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tracelake.domain.dag.catalog import Catalog, ConfigPath, OperatorSpec
from tracelake.domain.dag.draft import DagDraft, JobDraft
from tracelake.domain.dag.model import FIRED, Activation, ExecutionStrategy, Job, SourceKind, UpdateStrategy
from tracelake.domain.dag.problems import NO_EFFECT, Problems
from tracelake.domain.sources.decide_slots import Overlap

LEASE: tuple[str, ...] = ("heartbeat_timeout_seconds", "heartbeat_interval_seconds", "timeout_seconds")
PLATFORM = "max_platform_failures"
OF_TASKS: tuple[str, ...] = ("bootstrap", *LEASE, "max_attempts", PLATFORM, "retry", "scaling")
OF_QUEUES: tuple[str, ...] = ("max_queue_depth", "max_queue_age", "resume_queue_depth", "resume_queue_age")

Warned = tuple[str, str, str | None]
"""A field, why it has no effect, and what to write instead."""


def warn_of_no_effect(draft: DagDraft, jobs: Sequence[Job], catalog: Catalog, problems: Problems) -> None:
    for job, wired in zip(draft.jobs, jobs, strict=True):
        for name, reason, suggestion in (
            *_strategies(job, catalog),
            *_not_here(job, catalog),
            *_elsewhere(job, catalog),
        ):
            path = (*job.path, name) if name in job.given else ("defaults", name)
            problems.warn(path, NO_EFFECT, f"`{name}` has no effect{reason}", suggestion)
        for setting, reason in _ignored_settings(wired, catalog):
            problems.warn(
                (*job.path, "config", *setting), NO_EFFECT, f"`{setting[-1]}` has no effect{reason}", "remove it"
            )


def _ignored_settings(job: Job, catalog: Catalog) -> Iterator[tuple[ConfigPath, str]]:
    operator = catalog.operators.get(job.operator)
    if operator is None or operator.ignores is None or operator.check_config(job.config):
        return
    for path, reason in operator.ignores(job.config, job.outputs).items():
        if _is_given(job.config, path):
            yield path, reason


def _is_given(config: Any, path: ConfigPath) -> bool:
    """Whether the config has this setting; the steps before the last one exist."""
    for step in path[:-1]:
        config = config[step]
    return path[-1] in config


def _strategies(draft: JobDraft, catalog: Catalog) -> Iterator[Warned]:
    """How updates become tasks, and rows get into the dataset that is written."""
    job, operator = draft.job, catalog.operators.get(draft.job.operator)
    makes_whole = operator is not None and operator.makes_whole is not None and operator.makes_whole(job.config)
    is_given = "execution_strategy" in draft.given
    if job.execution_strategy is ExecutionStrategy.PER_PARTITION and is_given and makes_whole:
        yield "execution_strategy", " with `mode: full`, which reads every partition in each task", "remove it"
    written = [output.dataset is not None for output in draft.outputs or ()]
    if job.update_strategy is UpdateStrategy.APPEND and not any(written):
        reason = ": the dataset that is written decides how rows are added"
        yield "update_strategy", reason, "remove it; a buffered dataset is declared in `publish`"
    if job.update_strategy is UpdateStrategy.REPLACE and "update_strategy" in draft.given and written and all(written):
        yield "update_strategy", " on a buffered dataset: its rows are upserted by their key", "update_strategy: append"


def _not_here(draft: JobDraft, catalog: Catalog) -> Iterator[Warned]:
    """Given for this very job; the same in `defaults` is for the others."""
    source, runtime = draft.job.source, catalog.runtimes.get(draft.job.runtime)
    if source is not None and source.kind in FIRED and _forwards(draft, catalog):
        names, reason = (*OF_TASKS, *OF_QUEUES), f" on a {source.kind} source that only emits events and runs no task"
    elif source is not None and source.kind is SourceKind.CRON and source.overlap is not Overlap.ALLOW:
        names = ("scaling",)
        reason = f" with `overlap: {source.overlap}`, by which one task runs at a time"
    elif source is not None and source.kind is SourceKind.ALWAYS_ON:
        names = ("max_attempts", PLATFORM, "scaling", *OF_QUEUES)
        reason = " on an always_on source, which is one task that is restarted without a limit"
    elif runtime is not None and runtime.in_process:
        names = (*LEASE, PLATFORM, "scaling")
        reason = f" on runtime {draft.job.runtime}, where a task is one transaction and a job runs one at a time"
    else:
        return
    for name in names:
        if name in draft.given:
            yield name, reason, "remove it"


def _elsewhere(draft: JobDraft, catalog: Catalog) -> Iterator[Warned]:
    runtime, warm = catalog.runtimes.get(draft.job.runtime), draft.job.idle_timeout_seconds
    if "idle_timeout" in draft.given and warm is not None and runtime is not None and not runtime.has_workers:
        yield "idle_timeout", f" on runtime {draft.job.runtime}, which has no workers to keep ready", "remove it"
    yield from _replay(draft, catalog)
    yield from _unique_key(draft, catalog)


def _replay(draft: JobDraft, catalog: Catalog) -> Iterator[Warned]:
    operator = catalog.operators.get(draft.job.operator)
    if "replay" in draft.given and draft.job.activation is Activation.SOURCE:
        yield "replay", " on a source, which reads no dataset", "remove it"
    elif draft.job.replay and operator is not None and _writes_its_own(draft, operator):
        yield "replay", ": the job writes only its own datasets, which are made again anyway", "remove it"


def _unique_key(draft: JobDraft, catalog: Catalog) -> Iterator[Warned]:
    """Rows of a job's own files are compared by it; that of a declared dataset must be the same."""
    operator = catalog.operators.get(draft.job.operator)
    if draft.job.unique_key and operator is not None and operator.outputs.most == 0:
        yield "unique_key", f": operator {draft.job.operator!r} writes no rows", "remove it"


def _writes_its_own(draft: JobDraft, operator: OperatorSpec) -> bool:
    if draft.outputs is None:
        return operator.outputs.most != 0
    return bool(draft.outputs) and all(output.dataset is None for output in draft.outputs)


def _forwards(draft: JobDraft, catalog: Catalog) -> bool:
    operator = catalog.operators.get(draft.job.operator)
    return operator is not None and operator.forwards
