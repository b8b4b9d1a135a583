"""What the jobs of a draft must be together: names, inputs that lead somewhere, no cycles, publications."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tracelake.domain.dag.buffered import BufferedDraft, check_follows
from tracelake.domain.dag.catalog import Catalog, Wired
from tracelake.domain.dag.check_jobs import check_job
from tracelake.domain.dag.columns import KnownColumns
from tracelake.domain.dag.draft import DagDraft, InputDraft, InputReference, JobDraft, PublicationDraft
from tracelake.domain.dag.graph import sort
from tracelake.domain.dag.model import (
    BufferedDataset,
    DagInput,
    DagOutput,
    DeclaredDataset,
    ForeignDataset,
    Job,
    JobOutput,
    Publication,
    Storage,
)
from tracelake.domain.dag.problems import Problems
from tracelake.domain.dag.yaml_nodes import Path
from tracelake.domain.ids import DatasetName, JobName

Outputs = Mapping[JobName, Sequence[DagOutput]]
Upstream = JobOutput | DeclaredDataset | ForeignDataset


Checked = tuple[tuple[Job, ...], tuple[Publication, ...], tuple[BufferedDataset, ...]]


def check_dag(draft: DagDraft, catalog: Catalog, problems: Problems) -> Checked:
    """The jobs, wired, publications and declarations; what is wrong goes to `problems`, and then none may be used."""
    outputs_of = [check_job(job, catalog, problems) for job in draft.jobs]
    _check_names(draft.jobs, problems)
    known: dict[JobName, Sequence[DagOutput]] = {}
    for job, outputs in zip(draft.jobs, outputs_of, strict=True):
        if job.job.name:
            known.setdefault(job.job.name, outputs)
    publish = _publications(draft, known, catalog, problems)
    buffered = _declarations(draft, publish, catalog, problems)
    _check_roles([*draft.publish, *draft.buffered], catalog, problems)
    _check_writers(draft.jobs, buffered, problems)
    if not catalog.deployed:
        _check_keys(draft.jobs, buffered, problems)
    wiring = _Wiring(draft, known, publish, buffered, catalog=catalog, problems=problems)
    jobs = tuple(
        replace(job.job, inputs=wiring.inputs(job), outputs=outputs)
        for job, outputs in zip(draft.jobs, outputs_of, strict=True)
    )
    wiring.check_cycles()
    columns = KnownColumns(jobs, buffered, catalog)
    for element, wired in zip(draft.jobs, jobs, strict=True):
        if _check_wiring(element, wired, buffered, columns, catalog=catalog, problems=problems):
            _check_reads(element, wired, known, catalog, problems)
            _check_files(element, wired, known, catalog, problems)
            _check_filters(element, wired, catalog, problems)
    return jobs, tuple(publish), tuple(buffered)


def _check_wiring(
    draft: JobDraft,
    job: Job,
    buffered: Sequence[BufferedDataset],
    columns: KnownColumns,
    *,
    catalog: Catalog,
    problems: Problems,
) -> bool:
    """The operator's own view of the names. An input that leads nowhere was reported: it would be missed here too."""
    operator = catalog.operators.get(job.operator)
    if operator is None or operator.check_config(job.config) or len(job.inputs) != len(draft.inputs or ()):
        return False
    if operator.check_wiring is None:
        return True
    declared = {dataset.name: dataset.declaration for dataset in buffered}
    wired = Wired(
        tuple(element.name for element in job.inputs),
        tuple(element.name for element in job.outputs),
        tuple(
            declared.get(element.upstream.name) if isinstance(element.upstream, DeclaredDataset) else None
            for element in job.inputs
        ),
        tuple(declared.get(element.dataset) if element.dataset else None for element in job.outputs),
        catalog.alerts,
        () if catalog.deployed else tuple(columns.of(element) for element in job.inputs),
    )
    found = operator.check_wiring(job.config, wired)
    for problem in found:
        problems.add((*draft.path, problem.within, *problem.path), problem.code, problem.reason, problem.suggestion)
    return not found


def _check_reads(draft: JobDraft, job: Job, known: Outputs, catalog: Catalog, problems: Problems) -> None:
    """A hot table is written only by its follower, and most operators cannot read it."""
    reads = catalog.operators[job.operator].reads
    read = reads(job.config, [item.name for item in job.inputs]) if reads else ()
    for element, item in zip(draft.inputs or (), job.inputs, strict=True):
        if item.name in read and _storage_of(item.upstream, known, catalog) is Storage.POSTGRES:
            reason = f"{item.name!r} is a hot table, and {job.operator} reads datasets of files"
            hint = "read what parquet_compact makes of it; for its updates alone, put a noop in between"
            problems.add((*element.path, "from"), "hot_input", reason, hint)


def _check_files(draft: JobDraft, job: Job, known: Outputs, catalog: Catalog, problems: Problems) -> None:
    """Where no database can be reached, rows that are in one cannot be read."""
    runtime = catalog.runtimes.get(job.runtime)
    if runtime is None or not runtime.files_only:
        return
    for element, item in zip(draft.inputs or (), job.inputs, strict=True):
        if _storage_of(item.upstream, known, catalog) is Storage.BUFFERED:
            reason = f"the rows of {item.name!r} are in a database, which tasks of runtime {job.runtime!r} cannot reach"
            hint = "read what parquet_compact makes of it, or choose a runtime with workers"
            problems.add((*element.path, "from"), "table_input", reason, hint)


def _check_filters(draft: JobDraft, job: Job, catalog: Catalog, problems: Problems) -> None:
    """Refuses filters that would not be applied."""
    narrows = catalog.operators[job.operator].narrows
    names = [item.name for item in job.inputs]
    narrowed = narrows(job.config, names) if narrows else ()
    for element, item in zip(draft.inputs or (), job.inputs, strict=True):
        if item.where is None or item.name in narrowed or catalog.deployed:
            continue
        if narrows is None:
            reason = f"{job.operator} does not read the rows that a filter leaves: it would change nothing"
            hint = "remove it; filter in a job that reads the rows"
        else:
            reason = f"the config reads nothing of {item.name!r}: the filter would change nothing"
            hint = "remove it, or read this input"
        problems.add((*element.path, "where"), "not_for_this", reason, hint, on_key=True)


def _storage_of(upstream: Upstream, known: Outputs, catalog: Catalog) -> Storage | None:
    match upstream:
        case JobOutput(job, output):
            return known[job][output].storage
        case DeclaredDataset():
            return Storage.BUFFERED
        case ForeignDataset(name):
            return catalog.published[name].storage


def _check_names(jobs: Sequence[JobDraft], problems: Problems) -> None:
    first: dict[str, int] = {}
    for index, draft in enumerate(jobs):
        name = draft.job.name
        if name and name in first:
            reason = f"two jobs are called {name!r}, the other is jobs[{first[name]}]"
            problems.add((*draft.path, "name"), "duplicate_job", reason, "rename one")
        first.setdefault(name, index)


def _publications(draft: DagDraft, known: Outputs, catalog: Catalog, problems: Problems) -> list[Publication]:
    found: list[Publication] = []
    for element in draft.publish:
        target = _job_output(element.source, known, problems)
        if target is None or element.name is None:
            continue
        publication = Publication(DatasetName(element.name), target.job, target.output, element.read_roles)
        _check_publication(element, publication, found, problems)
        _check_owner(element, draft, catalog, problems)
        found.append(publication)
    return found


def _check_owner(
    publication_draft: PublicationDraft | BufferedDraft, draft: DagDraft, catalog: Catalog, problems: Problems
) -> None:
    owner = catalog.published.get(publication_draft.name or "")
    if owner is not None and owner.dag != draft.name:
        reason = f"DAG {owner.dag!r} already publishes {publication_draft.name!r}"
        _at_name(publication_draft, "published_elsewhere", reason, "choose another name", problems)


def _check_roles(published: Sequence[PublicationDraft | BufferedDraft], catalog: Catalog, problems: Problems) -> None:
    """Refuses unknown roles. A role that was removed after a deploy does no harm."""
    if catalog.roles is None or catalog.deployed:
        return
    for element in published:
        for index, role in enumerate(element.read_roles):
            if role not in catalog.roles:
                problems.unknown((*element.path, "read_roles", index), "role", role, catalog.roles)


def _declarations(
    draft: DagDraft, publish: Sequence[Publication], catalog: Catalog, problems: Problems
) -> list[BufferedDataset]:
    found: list[BufferedDataset] = []
    for element in draft.buffered:
        if element.name is None:
            continue
        if element.name in {*(item.name for item in publish), *(item.name for item in found)}:
            _at_name(element, "duplicate_published", f"{element.name!r} is published twice", "rename one", problems)
        _check_owner(element, draft, catalog, problems)
        check_follows(element, catalog.declared.get((draft.name, element.name)), problems)
        found.append(BufferedDataset(DatasetName(element.name), element.declaration, element.read_roles))
    return found


def _check_writers(jobs: Sequence[JobDraft], declared: Sequence[BufferedDataset], problems: Problems) -> None:
    names = [dataset.name for dataset in declared]
    for job in jobs:
        for output in job.outputs or ():
            if output.dataset and output.dataset not in names:
                problems.unknown((*output.path, "dataset"), "dataset", output.dataset, names)


def _check_keys(jobs: Sequence[JobDraft], declared: Sequence[BufferedDataset], problems: Problems) -> None:
    """The key that a job says its rows have is the one by which the sink upserts them."""
    keys = {str(dataset.name): dataset.declaration.unique_key for dataset in declared}
    for job in jobs:
        for name in {output.dataset for output in job.outputs or () if output.dataset in keys}:
            key = keys[str(name)]
            if job.job.unique_key and set(job.job.unique_key) != set(key):
                reason = f"rows of {name!r} are identified by {', '.join(key)}"
                problems.add((*job.path, "unique_key"), "other_key", reason, f"unique_key: [{', '.join(key)}]")


def _check_publication(
    draft: PublicationDraft, publication: Publication, others: Sequence[Publication], problems: Problems
) -> None:
    for other in others:
        if other.name == publication.name:
            _at_name(draft, "duplicate_published", f"{other.name!r} is published twice", "rename one", problems)
        elif (other.job, other.output) == (publication.job, publication.output):
            reason = f"this output is already published as {other.name!r}"
            problems.add((*draft.path, "job"), "published_twice", reason, "a dataset has one name")


def _at_name(
    draft: PublicationDraft | BufferedDraft, code: str, reason: str, suggestion: str, problems: Problems
) -> None:
    in_list = isinstance(draft.path[-1], int)
    problems.add((*draft.path, "name") if in_list else draft.path, code, reason, suggestion, on_key=not in_list)


def _job_output(reference: InputReference, known: Outputs, problems: Problems) -> JobOutput | None:
    if reference.job is None:
        return None
    job = JobName(reference.job)
    if job not in known:
        problems.unknown((*reference.path, "job"), "job", job, known)
        return None
    index = _output_index(reference, known[job], problems)
    return None if index is None else JobOutput(job, index)


def _output_index(reference: InputReference, outputs: Sequence[DagOutput], problems: Problems) -> int | None:
    path, names = (*reference.path, "output"), [output.name for output in outputs]
    if reference.output is None:
        if len(outputs) == 1:
            return 0
        reason = f"job {reference.job!r} has {len(outputs)} outputs: say which"
        problems.add(path, "missing", reason, f"one of: {', '.join(names)}" if names else None)
        return None
    if isinstance(reference.output, int) and reference.output < len(outputs):
        return reference.output
    if reference.output in names:
        return names.index(str(reference.output))
    problems.unknown(path, "output", str(reference.output), names)
    return None


class _Wiring:
    def __init__(
        self,
        draft: DagDraft,
        known: Outputs,
        publish: Sequence[Publication],
        buffered: Sequence[BufferedDataset],
        *,
        catalog: Catalog,
        problems: Problems,
    ) -> None:
        self._known = known
        self._own = {publication.name: publication for publication in publish}
        self._writers = {
            dataset.name: [
                job for job, outputs in known.items() if any(element.dataset == dataset.name for element in outputs)
            ]
            for dataset in buffered
        }
        self._foreign = {name: spec for name, spec in catalog.published.items() if spec.dag != draft.name}
        self._problems = problems
        self._edges: dict[str, dict[str, Path]] = {}
        """For each job, what it reads and by which input."""

    def inputs(self, draft: JobDraft) -> tuple[DagInput, ...]:
        inputs: list[DagInput] = []
        for element in draft.inputs or ():
            upstream = self._upstream(element.source)
            if upstream is None:
                continue
            if self._note_edge(draft, upstream, element):
                inputs.append(
                    DagInput(element.name or self._name_of(upstream), upstream, element.where, element.trigger)
                )
                self._check_name(inputs, element)
        return tuple(inputs)

    def check_cycles(self) -> None:
        upstream = {job: set(reads) for job, reads in self._edges.items()} | self._rings()
        _, cycles = sort(list(dict.fromkeys([*upstream, *self._known])), upstream)
        for cycle in cycles:
            job = next(node for node in cycle if node in self._known)
            feeder = cycle[cycle.index(job) - 1]
            path = " -> ".join([*cycle[cycle.index(job) :], *cycle[: cycle.index(job)], job])
            reason = f"jobs feed each other in a circle: {path}"
            self._problems.add(self._edges[job][feeder], "cycle", reason, "remove one of these inputs")

    def _rings(self) -> dict[str, set[str]]:
        """Foreign datasets as nodes of the graph: what they are made from may be what we publish."""
        read = {node for reads in self._edges.values() for node in reads}
        return {
            _foreign_node(name): {job for element in spec.upstream for job in self._makers(DatasetName(element))}
            for name, spec in self._foreign.items()
            if _foreign_node(name) in read
        }

    def _makers(self, name: DatasetName) -> Sequence[str]:
        """Who of this DAG writes what it publishes by this name."""
        return (self._own[name].job,) if name in self._own else self._writers.get(name, ())

    def _upstream(self, reference: InputReference) -> Upstream | None:
        if reference.dataset is None:
            return _job_output(reference, self._known, self._problems)
        name = DatasetName(reference.dataset)
        if name in self._own:
            return JobOutput(self._own[name].job, self._own[name].output)
        if name in self._writers:
            return DeclaredDataset(name)
        if name in self._foreign:
            return ForeignDataset(name)
        path = (*reference.path, "dataset")
        self._problems.unknown(path, "dataset", name, [*self._own, *self._writers, *self._foreign])
        return None

    def _note_edge(self, draft: JobDraft, upstream: Upstream, input_draft: InputDraft) -> bool:
        feeders = self._feeders(upstream)
        if draft.job.name in feeders:
            self._problems.add(
                (*input_draft.path, "from"), "self_input", "the job reads its own output", "remove this input"
            )
            return False
        for node in feeders:
            self._edges.setdefault(draft.job.name, {}).setdefault(node, (*input_draft.path, "from"))
        return True

    def _feeders(self, upstream: Upstream) -> Sequence[str]:
        match upstream:
            case JobOutput(job):
                return (job,)
            case DeclaredDataset(name):
                return self._writers[name]
            case ForeignDataset(name):
                return (_foreign_node(name),)

    def _name_of(self, upstream: Upstream) -> str:
        if isinstance(upstream, JobOutput):
            return self._known[upstream.job][upstream.output].name
        return upstream.name

    def _check_name(self, inputs: Sequence[DagInput], input_draft: InputDraft) -> None:
        name = inputs[-1].name
        if any(other.name == name for other in inputs[:-1]):
            self._problems.add(
                input_draft.path, "duplicate_input", f"two inputs are called {name!r}", "give one a `name`"
            )


def _foreign_node(name: str) -> str:
    return f"dataset {name}"
