"""What each job of a draft must be by itself: its own fields together, and what its operator and runtime allow."""

from __future__ import annotations

from tracelake.domain.dag.catalog import Catalog, OperatorSpec, RuntimeSpec
from tracelake.domain.dag.draft import JobDraft, OutputDraft
from tracelake.domain.dag.model import Activation, DagOutput, SourceKind, Storage, UpdateStrategy
from tracelake.domain.dag.problems import Problems
from tracelake.domain.ids import DatasetName
from tracelake.domain.sources.decide_slots import Overlap

_TRUSTED = RuntimeSpec()


def check_job(draft: JobDraft, catalog: Catalog, problems: Problems) -> tuple[DagOutput, ...]:
    """Note everything wrong with this job alone; its outputs, with their storage, are what the others may read."""
    _check_activation(draft, problems)
    _check_times(draft, problems)
    _check_unique_key(draft, problems)
    operator, runtime = _look_up(draft, catalog, problems)
    _check_trust(draft, operator, runtime, problems)
    if operator is not None:
        _check_operator(draft, operator, problems)
    outputs = _outputs(draft, operator, runtime or _TRUSTED, problems)
    _check_cutover(draft, operator, runtime or _TRUSTED, outputs, problems)
    return outputs


def _check_activation(draft: JobDraft, problems: Problems) -> None:
    if draft.job.activation is Activation.SOURCE:
        if "source" not in draft.given:
            problems.add(
                (*draft.path, "source"), "missing", "a source needs `source`", "such as source: {kind: manual}"
            )
        if "inputs" in draft.given:
            reason, hint = "a source has no inputs", "remove them, or make the job reactive"
            problems.add((*draft.path, "inputs"), "source_with_inputs", reason, hint, on_key=True)
        _not_for(draft, ("execution_strategy", "idle_timeout"), "a source", problems)
    else:
        if "inputs" not in draft.given:
            hint = "add `inputs`, or `source` if nothing is upstream"
            problems.add((*draft.path, "inputs"), "missing_inputs", "a reactive job needs inputs", hint)
        if draft.inputs and not any(element.trigger for element in draft.inputs):
            hint = "leave `trigger: false` out of the input whose updates are to be followed"
            problems.add((*draft.path, "inputs"), "no_trigger", "no input makes tasks: the job would never run", hint)
        _not_for(draft, ("source", "bootstrap"), "a reactive job", problems)


def _not_for(draft: JobDraft, fields: tuple[str, ...], what: str, problems: Problems) -> None:
    for name in fields:
        if name in draft.given:
            reason = f"`{name}` means nothing for {what}"
            problems.add((*draft.path, name), "not_for_this", reason, "remove it", on_key=True)


def _check_times(draft: JobDraft, problems: Problems) -> None:
    job = draft.job
    if job.heartbeat_interval_seconds * 2 > job.heartbeat_timeout_seconds:
        both = ("heartbeat_interval_seconds", "heartbeat_timeout_seconds")
        own = next(((*draft.path, name) for name in both if name in draft.given), ("defaults", both[0]))
        reason = (
            f"a heartbeat every {job.heartbeat_interval_seconds} s cannot keep a lease of "
            f"{job.heartbeat_timeout_seconds} s alive when one is lost"
        )
        problems.add(own, "slow_heartbeat", reason, "beat at least twice in heartbeat_timeout_seconds")
    if job.source is not None and job.source.kind is SourceKind.ALWAYS_ON:
        _not_for(draft, ("timeout_seconds",), "an always_on source, which never ends", problems)


def _check_unique_key(draft: JobDraft, problems: Problems) -> None:
    if draft.job.update_strategy is UpdateStrategy.APPEND and "unique_key" not in draft.given:
        reason = "`update_strategy: append` needs a `unique_key`: without it a row sent twice would count twice"
        hint = "such as unique_key: [block_number, log_index]"
        problems.add((*draft.path, "update_strategy"), "missing_unique_key", reason, hint)


def _check_cutover(
    draft: JobDraft,
    operator: OperatorSpec | None,
    runtime: RuntimeSpec,
    outputs: tuple[DagOutput, ...],
    problems: Problems,
) -> None:
    """Limits need files of both versions to compare, before the release is promoted."""
    source, reason = draft.job.source, None
    if runtime.in_process or (source is not None and operator is not None and operator.forwards):
        reason = f"operator {draft.job.operator!r} only emits events: it has no rows to compare"
    elif any(output.storage is not Storage.PARQUET for output in outputs) or not outputs:
        reason = "only datasets in Parquet files can be compared before a cutover, and this job has others or none"
    if "cutover" in draft.given and reason is not None:
        hint = "remove it, or give it to a job that writes only Parquet"
        problems.add((*draft.path, "cutover"), "not_for_this", reason, hint, on_key=True)


def _look_up(draft: JobDraft, catalog: Catalog, problems: Problems) -> tuple[OperatorSpec | None, RuntimeSpec | None]:
    job = draft.job
    operator, runtime = catalog.operators.get(job.operator), catalog.runtimes.get(job.runtime)
    if operator is None and job.operator:
        problems.unknown((*draft.path, "operator"), "operator", job.operator, catalog.operators)
    if runtime is None and job.runtime:
        path = (*draft.path, "runtime") if "runtime" in draft.given else ("defaults", "runtime")
        problems.unknown(path, "runtime", job.runtime, catalog.runtimes)
    if runtime is not None and runtime.missing is not None:
        path = (*draft.path, "runtime") if "runtime" in draft.given else ("defaults", "runtime")
        here = ", ".join(name for name, item in catalog.runtimes.items() if item.missing is None)
        problems.add(path, "runtime_not_here", runtime.missing, f"one of: {here}")
    if operator is not None and runtime is not None and job.runtime not in operator.runtimes:
        reason = f"operator {job.operator!r} does not run on {job.runtime!r}"
        hint = f"one of: {', '.join(sorted(operator.runtimes))}"
        problems.add((*draft.path, "runtime"), "runtime_not_allowed", reason, hint)
    return operator, runtime


def _check_trust(
    draft: JobDraft, operator: OperatorSpec | None, runtime: RuntimeSpec | None, problems: Problems
) -> None:
    _check_bundle(draft, operator, runtime, problems)
    untrusted = "udf" in draft.given or (runtime is not None and runtime.untrusted)
    if "secrets" in draft.given and untrusted:
        hint = "fetch with a trusted job upstream"
        problems.add((*draft.path, "secrets"), "secrets_on_udf", "untrusted code never gets secrets", hint, on_key=True)
    elif "secrets" in draft.given and operator is not None and not operator.takes_secrets:
        reason = f"operator {draft.job.operator!r} does nothing with secrets"
        problems.add((*draft.path, "secrets"), "not_for_this", reason, "remove them", on_key=True)


def _check_bundle(
    draft: JobDraft, operator: OperatorSpec | None, runtime: RuntimeSpec | None, problems: Problems
) -> None:
    path, job = (*draft.path, "udf"), draft.job
    if "udf" not in draft.given:
        if operator is not None and operator.runs_bundle:
            problems.add(path, "missing", f"operator {job.operator!r} needs a `udf` bundle")
    elif operator is not None and not operator.runs_bundle:
        problems.add(path, "not_for_this", f"operator {job.operator!r} runs no bundle", "remove it", on_key=True)
    elif runtime is not None and not runtime.untrusted:
        reason = f"a bundle is code that Trace does not trust, and runtime {job.runtime!r} would run it among its own"
        problems.add(path, "udf_on_trusted_runtime", reason, "use an untrusted runtime", on_key=True)


def _check_operator(draft: JobDraft, operator: OperatorSpec, problems: Problems) -> None:
    job = draft.job
    if job.activation is Activation.REACTIVE and not operator.reactive:
        reason = f"operator {job.operator!r} is a source"
        problems.add((*draft.path, "operator"), "operator_is_source", reason, "give the job a `source`")
    if job.source is not None and job.activation is Activation.SOURCE and job.source.kind not in operator.source_kinds:
        _refuse_source_kind(draft, job.source.kind, operator, problems)
    _check_fires(draft, operator, problems)
    if (
        job.activation is Activation.REACTIVE
        and draft.inputs is not None
        and not operator.inputs.allows(len(draft.inputs))
    ):
        reason = f"operator {job.operator!r} takes {operator.inputs} inputs, not {len(draft.inputs)}"
        problems.add((*draft.path, "inputs"), "bad_count", reason)
    if problems.at((*draft.path, "config")):
        return  # not even a map: what it lacks follows from that
    for problem in operator.check_config(job.config):
        at = (*draft.path, "config", *problem.path)
        on_key = problem.code == "unknown_field"
        problems.add(at, problem.code, problem.reason, problem.suggestion, on_key=on_key)


def _check_fires(draft: JobDraft, operator: OperatorSpec, problems: Problems) -> None:
    """What a schedule says about its tasks means nothing where there are none."""
    source = draft.job.source
    if source is None or not operator.forwards:
        return
    asked = {"overlap": source.overlap not in {None, Overlap.SKIP}, "pause_on_failure": source.pause_on_failure}
    for name in [name for name, is_asked in asked.items() if is_asked]:
        reason = f"`{name}` means nothing for operator {draft.job.operator!r}, which only emits events"
        problems.add((*draft.path, "source", name), "not_for_this", reason, "remove it", on_key=True)


def _refuse_source_kind(draft: JobDraft, kind: SourceKind, operator: OperatorSpec, problems: Problems) -> None:
    path = (*draft.path, "source", "kind")
    reason = f"operator {draft.job.operator!r} cannot be a source of kind {kind}"
    kinds = ", ".join(sorted(operator.source_kinds))
    hint = f"one of: {kinds}" if kinds else "it only reacts: give it inputs, such as a noop that is the source"
    problems.add(path, "source_kind_not_allowed", reason, hint)


def _outputs(
    draft: JobDraft, operator: OperatorSpec | None, runtime: RuntimeSpec, problems: Problems
) -> tuple[DagOutput, ...]:
    drafts = _default_outputs(draft, operator) if draft.outputs is None else draft.outputs
    if operator is not None and not operator.outputs.allows(len(drafts)):
        reason = f"operator {draft.job.operator!r} has {operator.outputs} outputs, not {len(drafts)}"
        problems.add((*draft.path, "outputs"), "bad_count", reason)
    return tuple(
        _declared(draft, index, output, operator, problems)
        if output.dataset is not None
        else DagOutput(index, output.name, _storage(draft, output, operator, runtime, problems))
        for index, output in enumerate(drafts)
    )


def _declared(
    draft: JobDraft, index: int, output: OutputDraft, operator: OperatorSpec | None, problems: Problems
) -> DagOutput:
    """Into a declared dataset; how rows get into it is not the job's affair."""
    if operator is not None and Storage.BUFFERED not in operator.storages:
        reason = f"operator {draft.job.operator!r} does not write buffered datasets"
        hint = f"one of: {', '.join(operator.storages)}"
        problems.add((*output.path, "dataset"), "storage_not_allowed", reason, hint)
    return DagOutput(index, output.name, Storage.BUFFERED, DatasetName(output.dataset or ""))


def _default_outputs(draft: JobDraft, operator: OperatorSpec | None) -> tuple[OutputDraft, ...]:
    """One, called as the job is; as many as the operator must have if that is not one."""
    count = 1
    if operator is not None:
        count = max(operator.outputs.least, 1 if operator.outputs.most is None else min(1, operator.outputs.most))
    name, path = draft.job.name, (*draft.path, "outputs")
    return tuple(OutputDraft(path, name if count == 1 else f"{name}_{index}", None) for index in range(count))


def _storage(
    draft: JobDraft, output: OutputDraft, operator: OperatorSpec | None, runtime: RuntimeSpec, problems: Problems
) -> Storage:
    able = tuple(Storage) if operator is None else operator.storages
    fitting = [kind for kind in able if _why_not(kind, draft.job.update_strategy, runtime) is None]
    if output.storage is None:
        if not fitting:
            problems.add(output.path, "storage_not_allowed", _why_none(draft, able, runtime))
        return fitting[0] if fitting else Storage.PARQUET
    reason = _why_not(output.storage, draft.job.update_strategy, runtime)
    code, hint = "storage_not_allowed", f"one of: {', '.join(fitting)}" if fitting else None
    if output.storage not in able:
        reason = f"operator {draft.job.operator!r} does not write {output.storage}"
    elif output.storage is Storage.BUFFERED:
        code = "not_declared"
        hint = f"declare {output.name} there, and write into it by outputs: [{{dataset: {output.name}}}]"
    if reason is not None:
        problems.add((*output.path, "storage"), code, reason, hint)
    return output.storage


def _why_not(storage: Storage, strategy: UpdateStrategy, runtime: RuntimeSpec) -> str | None:
    if storage is Storage.PARQUET and strategy is UpdateStrategy.APPEND:
        return "Parquet outputs are replaced, never appended to"
    if storage is Storage.BUFFERED:
        return "a buffered dataset is declared in `publish`, which says what its rows are"
    if storage is Storage.POSTGRES and runtime.untrusted:
        return "untrusted code never writes to Postgres itself"
    return None


def _why_none(draft: JobDraft, able: tuple[Storage, ...], runtime: RuntimeSpec) -> str:
    reasons = [_why_not(kind, draft.job.update_strategy, runtime) for kind in able]
    return f"operator {draft.job.operator!r} has nowhere to write: {'; '.join(filter(None, reasons))}"
