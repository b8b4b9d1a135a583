"""Fields that are part of the language and have no effect yet, or none for this job: each is a warning at its place.

They are accepted because the language has them and a later Trace will act on them. A value that asks for what happens
anyway (`idle_timeout: never`, `priority: normal`) is no reason to warn.
"""

from __future__ import annotations

from collections.abc import Iterator

from tracelake.domain.dag.catalog import Catalog
from tracelake.domain.dag.draft import DagDraft, JobDraft
from tracelake.domain.dag.model import ExecutionStrategy, Job, SourceKind, UpdateStrategy
from tracelake.domain.dag.problems import Problems
from tracelake.domain.pressure import Priority

CODE = "no_effect"
LEASE: tuple[str, ...] = ("heartbeat_timeout_seconds", "heartbeat_interval_seconds", "timeout_seconds")
PLATFORM = "max_platform_failures"
OF_TASKS: tuple[str, ...] = ("bootstrap", *LEASE, "max_attempts", PLATFORM, "retry", "scaling")

Warned = tuple[str, str, str | None]
"""A field, why it has no effect, and what to write instead."""


def warn_of_no_effect(draft: DagDraft, catalog: Catalog, problems: Problems) -> None:
    for job in draft.jobs:
        for name, reason, suggestion in (*_not_built(job.job), *_not_here(job, catalog)):
            path = (*job.path, name) if name in job.given else ("defaults", name)
            problems.warn(path, CODE, f"`{name}` has no effect{reason}", suggestion)
        for name, reason in _ignored_settings(job, catalog):
            problems.warn((*job.path, "config", name), CODE, f"`{name}` has no effect{reason}", "remove it")


def _ignored_settings(draft: JobDraft, catalog: Catalog) -> Iterator[tuple[str, str]]:
    operator, config = catalog.operators.get(draft.job.operator), draft.job.config
    if operator is not None and operator.ignores is not None:
        yield from ((name, reason) for name, reason in operator.ignores(config).items() if name in config)


def _not_built(job: Job) -> Iterator[Warned]:
    """Whatever the job is."""
    limit = "`scaling.max_concurrency` limits how many tasks run at once"
    if job.max_queue_depth is not None:
        yield "max_queue_depth", " yet: no job is paused because a queue is long", limit
    if job.max_queue_age_seconds is not None:
        yield "max_queue_age", " yet: no job is paused because a task has waited long", limit
    if job.priority is Priority.BULK:
        yield "priority", " yet: tasks of both priorities are started in the order in which they were queued", None
    if job.idle_timeout_seconds is not None:
        yield "idle_timeout", " yet: workers stay warm", "remove it, or write `never`"
    if job.execution_strategy is ExecutionStrategy.PER_PARTITION:
        yield "execution_strategy", " yet: every event makes one task, as with PerUpdate", "remove it"
    if job.update_strategy is UpdateStrategy.APPEND:
        reason = ": the dataset that is written decides how rows are added"
        yield "update_strategy", reason, "remove it; a buffered dataset is declared in `publish`"
    if job.unique_key:
        yield "unique_key", ": the dataset that is written has its key", "remove it; give it where `publish` declares"


def _not_here(draft: JobDraft, catalog: Catalog) -> Iterator[Warned]:
    """Given for this very job; the same in `defaults` is for the others."""
    source, runtime = draft.job.source, catalog.runtimes.get(draft.job.runtime)
    if source is not None and source.kind is SourceKind.MANUAL:
        names, reason = OF_TASKS, " on a manual source, which only emits events and runs no task"
    elif source is not None and source.kind is SourceKind.ALWAYS_ON:
        names = ("max_attempts", PLATFORM, "scaling")
        reason = " on an always_on source, which is one task that is restarted without a limit"
    elif runtime is not None and runtime.in_process:
        names = (*LEASE, PLATFORM)
        reason = f" on runtime {draft.job.runtime}, where a task is one transaction"
    else:
        return
    for name in names:
        if name in draft.given:
            yield name, reason, "remove it"
