"""From YAML nodes to a draft: every field has its type and its default, but nothing has been wired or looked up yet."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tracelake.domain.cutover import LIMITS, CutoverLimit
from tracelake.domain.dag.buffered import MARKS, BufferedDraft, read_declaration
from tracelake.domain.dag.catalog import RuntimeSpec
from tracelake.domain.dag.draft import DagDraft, InputDraft, InputReference, JobDraft, OutputDraft, PublicationDraft
from tracelake.domain.dag.form import ANY_TEXT, DAY, NAME, Form, TextPattern, read_entries, read_text, refuse
from tracelake.domain.dag.model import (
    Activation,
    Bootstrap,
    ExecutionStrategy,
    Job,
    Retry,
    RunDefaults,
    Scaling,
    SourceKind,
    Storage,
    Udf,
    UpdateStrategy,
)
from tracelake.domain.dag.problems import Problems
from tracelake.domain.dag.read_source import SECRET, read_source
from tracelake.domain.dag.yaml_nodes import Entries, Items, Node, Path, Scalar, Unreadable, plain
from tracelake.domain.filter.parse import parse_where
from tracelake.domain.filter.tree import Filter, InvalidFilter
from tracelake.domain.flow.pressure import Priority
from tracelake.domain.ids import DagName, JobName

MAX_JOBS = 1_000
MAX_OUTPUTS = 100

COLUMN = TextPattern(re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}"), "the name of a column", code="bad_name")
ROLE = TextPattern(re.compile(r"[a-z0-9][a-z0-9_-]{0,127}"), "the slug of a role", code="bad_name")
SHA256 = TextPattern(re.compile(r"[0-9a-f]{64}"), "a SHA-256 in 64 lower-case hexadecimal digits")
BUNDLE = TextPattern(
    re.compile(r"(?!.*\.\.)[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*"),
    "the name of a bundle: letters, digits, '.', '_', '-' and '/', relative, without '..'",
)


def read_dag(root: Node, problems: Problems, runtimes: Mapping[str, RuntimeSpec]) -> DagDraft:
    top = read_entries(root, (), problems)
    if top is None:
        return DagDraft(DagName(""), (), ())
    form = Form("dag", top, (), problems)
    form.require("name")
    form.require("jobs")
    defaults = form.form("defaults")
    if defaults is not None:
        _read_job(defaults, defaults, runtimes)  # once for its own faults, even if no job takes a value from it
    jobs = form.items("jobs")
    if isinstance(form.node("jobs"), Items) and not 1 <= len(jobs) <= MAX_JOBS:
        problems.add(("jobs",), "bad_count", f"{len(jobs)} jobs", f"a DAG has 1 to {MAX_JOBS} jobs")
    published = _publish(form)
    return DagDraft(
        name=DagName(form.text("name", NAME, "")),
        jobs=tuple(
            draft for node, path in jobs[:MAX_JOBS] if (draft := _job_at(node, path, problems, defaults, runtimes))
        ),
        publish=tuple(draft for draft in published if isinstance(draft, PublicationDraft)),
        buffered=tuple(draft for draft in published if isinstance(draft, BufferedDraft)),
    )


def _job_at(
    node: Node, path: Path, problems: Problems, defaults: Form | None, runtimes: Mapping[str, RuntimeSpec]
) -> JobDraft | None:
    entries = read_entries(node, path, problems)
    if entries is None:
        return None
    form = Form("job", entries, path, problems)
    shared = form.falling_back_on(defaults)
    for name in ("name", "operator", "runtime"):
        shared.require(name)
    return _read_job(form, shared, runtimes)


def _read_job(own: Form, shared: Form, runtimes: Mapping[str, RuntimeSpec]) -> JobDraft:
    """`own` has the job's fields alone, `shared` falls back on `defaults`."""
    source = read_source(own)
    activation = own.choice(
        "activation", Activation, Activation.SOURCE if "source" in own.given else Activation.REACTIVE
    )
    reactive = activation is Activation.REACTIVE
    runtime = shared.text("runtime", ANY_TEXT, "")
    silent = runtimes[runtime].defaults if runtime in runtimes else RunDefaults()
    lease = shared.seconds("heartbeat_timeout_seconds", silent.heartbeat_timeout_seconds, least=2, most=DAY)
    lost = shared.whole("max_platform_failures", silent.max_platform_failures, least=1, most=10_000)
    endless = source is not None and source.kind is SourceKind.ALWAYS_ON
    job = Job(
        name=JobName(own.text("name", NAME, "")),
        activation=activation,
        runtime=runtime,
        operator=own.text("operator", ANY_TEXT, ""),
        source=source,
        bootstrap=_bootstrap(own),
        execution_strategy=_execution_strategy(shared if reactive else own, reactive=reactive),
        idle_timeout_seconds=_idle_timeout(shared if reactive else own),
        config=own.data("config"),
        update_strategy=shared.choice("update_strategy", UpdateStrategy, UpdateStrategy.REPLACE),
        unique_key=own.texts("unique_key", COLUMN, least=1),
        scaling=_scaling(shared),
        priority=shared.choice("priority", Priority, Priority.NORMAL),
        max_queue_depth=shared.whole("max_queue_depth", None, least=1, most=10**9),
        max_queue_age_seconds=shared.seconds("max_queue_age", None),
        resume_queue_depth=shared.whole("resume_queue_depth", None, least=0, most=10**9),
        resume_queue_age_seconds=shared.seconds("resume_queue_age", None, least=0),
        timeout_seconds=own.seconds("timeout_seconds", None)
        if endless
        else shared.seconds("timeout_seconds", silent.timeout_seconds),
        heartbeat_timeout_seconds=lease,
        heartbeat_interval_seconds=shared.seconds("heartbeat_interval_seconds", silent.interval(lease), most=DAY),
        max_attempts=shared.whole("max_attempts", silent.max_attempts, least=1, most=100),
        max_platform_failures=0 if endless else lost,
        retry=_retry(shared, silent.retry),
        udf=_udf(own),
        secrets=own.texts("secrets", SECRET),
        replay=own.flag("replay", default=False),
        cutover=_cutover(own),
    )
    _check_resume_mark(shared, "depth", job.max_queue_depth, job.resume_queue_depth)
    _check_resume_mark(shared, "age", job.max_queue_age_seconds, job.resume_queue_age_seconds)
    return JobDraft(own.path, own.given, job, _inputs(own), _outputs(own, job.name))


def _cutover(own: Form) -> dict[str, CutoverLimit]:
    form = own.form("cutover")
    if form is None:
        return {}
    node = own.node("cutover")
    if isinstance(node, Entries) and not node.entries:
        hint = f"one of: {', '.join(LIMITS)}"
        own.problems.add((*own.path, "cutover"), "empty", "no limit is given here", hint)
    found = {name: form.limit(name) for name in LIMITS}
    return {name: limit for name, limit in found.items() if limit is not None}


def _check_resume_mark(form: Form, what: str, most: int | None, resume: int | None) -> None:
    """Producers resume at or below the limit that pauses them; above it, they would never stay paused."""
    if resume is None or (most is not None and resume <= most):
        return
    limit = f"`max_queue_{what}`"
    path = form.place(f"resume_queue_{what}")
    if most is None:
        form.problems.add(path, "not_for_this", f"there is no {limit}", f"give {limit}, or remove it", on_key=True)
    else:
        form.problems.add(path, "bad_resume_mark", f"{resume} is above {limit}, {most}", f"at most {most}")


def _bootstrap(form: Form) -> Bootstrap | None:
    inner = form.form("bootstrap")
    return None if inner is None else Bootstrap(reset_outputs=inner.flag("reset_outputs", default=False))


def _execution_strategy(form: Form, *, reactive: bool) -> ExecutionStrategy | None:
    node = form.node("execution_strategy")
    if isinstance(node, Scalar) and node.value == "Bulk":
        path = form.place("execution_strategy")
        form.problems.add(
            path, "bad_choice", "Bulk is not supported", "PerUpdate or PerPartition; see `priority: bulk`"
        )
        return None
    return form.choice("execution_strategy", ExecutionStrategy, ExecutionStrategy.PER_UPDATE if reactive else None)


def _idle_timeout(form: Form) -> int | None:
    node = form.node("idle_timeout")
    never = isinstance(node, Scalar) and node.value == "never"
    return None if never else form.seconds("idle_timeout", None, least=0)


def _scaling(form: Form) -> Scaling:
    inner = form.form("scaling")
    return Scaling() if inner is None else Scaling(inner.whole("max_concurrency", None, least=1, most=100_000))


def _retry(form: Form, silent: Retry) -> Retry:
    inner = form.form("retry")
    if inner is None:
        return silent
    first = inner.seconds("backoff", silent.backoff_seconds, most=DAY)
    longest = inner.seconds("max_backoff", max(first, silent.max_backoff_seconds), most=DAY)
    if first > longest:
        inner.problems.add(
            (*inner.path, "backoff"), "bad_backoff", f"{first} s is longer than the longest wait, {longest} s"
        )
    return Retry(first, longest)


def _udf(form: Form) -> Udf | None:
    inner = form.form("udf")
    if inner is None:
        return None
    inner.require("bundle")
    inner.require("sha256", "the SHA-256 of the bundle: other bytes are another job")
    return Udf(
        bundle=inner.text("bundle", BUNDLE, ""),
        sha256=inner.text("sha256", SHA256, ""),
        handler=inner.text("handler", ANY_TEXT, "main.handler"),
    )


def _inputs(form: Form) -> tuple[InputDraft, ...] | None:
    items = form.items("inputs")
    if not isinstance(form.node("inputs"), Items):
        return None
    return tuple(_input(node, path, form.problems) for node, path in items)


def _input(node: Node, path: Path, problems: Problems) -> InputDraft:
    upstream = node.value if isinstance(node, Scalar) and isinstance(node.value, str) else "..."
    entries = read_entries(node, path, problems, f"such as {{from: {{job: {upstream[:40]}}}}}")
    if entries is None:
        return InputDraft(path, InputReference(path), None, None)
    form = Form("inputs", entries, path, problems)
    form.require("from", "{job: ..., output: ...} or {dataset: ...}")
    name = form.text("name", NAME, None)
    return InputDraft(path, _from(form), name, _where(form), form.flag("trigger", default=True))


def _from(form: Form) -> InputReference:
    inner = form.form("from")
    if inner is None:
        return InputReference(form.path)
    if "job" in inner.given and "dataset" in inner.given:
        inner.problems.add(inner.path, "bad_reference", "both a job and a dataset are given", "keep one of the two")
        return InputReference(inner.path)
    if "dataset" in inner.given and "output" in inner.given:
        path = (*inner.path, "output")
        inner.problems.add(path, "not_for_this", "a dataset has no outputs to choose from", "remove it", on_key=True)
    if not {"job", "dataset"} & inner.given:
        inner.problems.add(inner.path, "missing", "`job` or `dataset` is required")
    return _reference(inner)


def _reference(form: Form) -> InputReference:
    job, dataset, output = form.text("job", ANY_TEXT, None), form.text("dataset", ANY_TEXT, None), _which_output(form)
    if "output" in form.given and output is None:  # refused: there is nothing left to look up
        return InputReference(form.path)
    return InputReference(form.path, job, output, dataset)


def _which_output(form: Form) -> str | int | None:
    node = form.node("output")
    if isinstance(node, Scalar) and isinstance(node.value, str):
        return node.value
    return form.whole("output", None, least=0, most=MAX_OUTPUTS - 1)


def _where(form: Form) -> Filter | None:
    node, path = form.node("where"), (*form.path, "where")
    if node is None or isinstance(node, Unreadable):
        return None
    if isinstance(node, Scalar) and isinstance(node.value, str):
        return _where_sql(node, node.value, path, form.problems)
    if isinstance(node, Entries):
        return _where_map(node, path, form.problems)
    refuse((node, path), "wrong_type", "a map of columns and values, or SQL as text", form.problems)
    return None


def _where_sql(node: Scalar, text: str, path: Path, problems: Problems) -> Filter | None:
    try:
        return parse_where(text)
    except InvalidFilter as refusal:
        mark = None if refusal.position is None else node.mark_of(refusal.position)
        reason = (
            refusal.message if mark is not None or refusal.where is None else f"{refusal.message} ({refusal.where})"
        )
        problems.add(path, "bad_filter", reason, refusal.hint, at=mark)
        return None


def _where_map(node: Entries, path: Path, problems: Problems) -> Filter | None:
    if any(isinstance(value, Unreadable) for _, value in node.entries.values()):
        return None
    try:
        return parse_where(plain(node))
    except InvalidFilter as refusal:
        at = path if refusal.key is None else (*path, refusal.key)
        problems.add(at, "bad_filter", refusal.message, refusal.hint)
        return None


def _outputs(form: Form, job: str) -> tuple[OutputDraft, ...] | None:
    node, path = form.node("outputs"), (*form.path, "outputs")
    if node is None or isinstance(node, Unreadable):
        return None
    if isinstance(node, Items):
        return _named_outputs(form)
    if isinstance(node, Scalar) and isinstance(node.value, str):
        refuse((node, path), "wrong_type", "a list of names", form.problems, f"such as [{node.value[:40]}]")
        return None
    count = form.whole("outputs", None, least=0, most=MAX_OUTPUTS)
    if count is None:
        return None
    return tuple(OutputDraft(path, job if count == 1 else f"{job}_{index}", None) for index in range(count))


def _named_outputs(form: Form) -> tuple[OutputDraft, ...]:
    drafts: list[OutputDraft] = []
    for node, path in form.items("outputs"):
        draft = _output(node, path, form.problems)
        if draft.name and draft.name in {other.name for other in drafts}:
            form.problems.add(path, "duplicate", f"two outputs are called {draft.name!r}", "rename one")
        drafts.append(draft)
    if len(drafts) > MAX_OUTPUTS:
        form.problems.add((*form.path, "outputs"), "bad_count", f"{len(drafts)} outputs", f"at most {MAX_OUTPUTS}")
    return tuple(drafts[:MAX_OUTPUTS])


def _output(node: Node, path: Path, problems: Problems) -> OutputDraft:
    if not isinstance(node, Entries):
        return OutputDraft(path, read_text(node, path, NAME, problems) or "", None)
    form = Form("outputs", node, path, problems)
    if "dataset" in form.given:
        return _declared_output(form)
    form.require("name")
    return OutputDraft(path, form.text("name", NAME, ""), form.choice("storage", Storage, None))


def _declared_output(form: Form) -> OutputDraft:
    """An output to a dataset that `publish` declares, with its name and storage."""
    for name in ("name", "storage"):
        if name in form.given:
            reason = f"`{name}` is given by the dataset's declaration"
            form.problems.add((*form.path, name), "not_for_this", reason, "remove it", on_key=True)
    dataset = form.text("dataset", NAME, "")
    return OutputDraft(form.path, dataset, None, dataset)


def _publish(form: Form) -> tuple[PublicationDraft | BufferedDraft, ...]:
    node = form.node("publish")
    if not isinstance(node, Entries):
        drafts = [_publication(item, path, form.problems) for item, path in form.items("publish")]
        return tuple(draft for draft in drafts if draft is not None)
    named = []
    for name, (_, value) in node.entries.items():
        path: Path = ("publish", name)
        if NAME.pattern.fullmatch(name) is None:
            form.problems.add(path, "bad_name", f"{name[:80]!r} is not {NAME.words}", NAME.nearest(name), on_key=True)
        named.append(_publication(value, path, form.problems, name))
    return tuple(draft for draft in named if draft is not None)


def _publication(
    node: Node, path: Path, problems: Problems, name: str | None = None
) -> PublicationDraft | BufferedDraft | None:
    entries = read_entries(node, path, problems)
    if entries is None:
        return None
    form = Form("publish", entries, path, problems)
    if name is not None and "name" in form.given:
        problems.add((*path, "name"), "not_for_this", "the name is given by the key", "remove it", on_key=True)
    elif name is None:
        form.require("name")
        name = form.text("name", NAME, None)
    if MARKS & form.given:
        return read_declaration(form, name, form.texts("read_roles", ROLE))
    form.require("job")
    return PublicationDraft(path, name, _reference(form), form.texts("read_roles", ROLE))
