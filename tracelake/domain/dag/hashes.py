"""Hashes that detect changes, and the ids derived from them.

- `yaml_hash`: the document as written, without its formatting. Same hash, same version: a second deploy does nothing.
  Defaults are not filled in first, or a new release with another default would make new versions of unchanged files.
- `config_hash`: what decides the bytes a job produces, and nothing of how it is run.
- lineage: a job's config hash with those of everything upstream, and the generations of other DAGs that it reads. It
  names the generation of the job's datasets, so a change gives new generations to that job and everything downstream,
  and to nothing else.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, assert_never

from tracelake.domain.dag.catalog import ListedAddresses, OperatorSpec
from tracelake.domain.dag.graph import job_order
from tracelake.domain.dag.model import Dag, DagInput, DeclaredDataset, ForeignDataset, Job, JobOutput, Storage
from tracelake.domain.filter.tree import as_json
from tracelake.domain.ids import (
    ConfigHash,
    DatasetId,
    DatasetName,
    DatasetVersion,
    JobName,
    LineageHash,
    OrgId,
    YamlHash,
    dataset_id,
    declared_dataset_id,
    generation_id,
)

BUFFERED: Final = LineageHash("buffered")
"""Of every declared dataset: it has one generation for good, which no change of its writers empties."""


@dataclass(frozen=True)
class Basis:
    """What the lineages of a version are derived from, beside its YAML."""

    config_hashes: Mapping[JobName, ConfigHash] = field(default_factory=dict)
    """Of jobs that the active version has too, written otherwise with the same meaning: they keep their hash."""
    foreign: Mapping[DatasetName, DatasetVersion] = field(default_factory=dict)
    """The generations of datasets of other DAGs. Names that are missing do not count: versions that were deployed
    before these were recorded keep their generations."""


WRITTEN: Final = Basis()
"""Only the YAML."""


def canonical_json(data: Any) -> str:
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def hash_yaml(canonical: str) -> YamlHash:
    return YamlHash(_sha256(canonical))


def config_hash(job: Job, tuning: Collection[str] = ()) -> ConfigHash:
    """Covers operator, runtime, config without tuning, bundle, wiring with filters, and the form of the outputs."""
    deciding = {
        "operator": job.operator,
        "runtime": job.runtime,
        "config": {name: value for name, value in job.config.items() if name not in tuning},
        "bundle": None if job.udf is None else [job.udf.sha256, job.udf.handler],
        "inputs": [_wire(element) for element in job.inputs],
        "outputs": [output.dataset or output.storage for output in job.outputs],
        "update_strategy": job.update_strategy,
        "unique_key": job.unique_key,
        "execution_strategy": job.execution_strategy,
    }
    return ConfigHash(_sha256(canonical_json(deciding)))


def memo_hash(job: Job, operator: OperatorSpec | None) -> str | None:
    """Covers what decides the rows that tasks of the job write, beside those that they read. None: something else does.

    Unlike the config hash it names neither the runtime nor the datasets that are read: only their contents count.
    """
    if operator is None or operator.reproduces is None or not _writes_files_alone(job):
        return None
    names = [item.name for item in job.inputs]
    if not operator.reproduces(job.config, names):
        return None
    listed = listed_addresses(job, operator)
    config = job.config if listed is None else listed.rest
    config = config if operator.canonical is None else operator.canonical(config)
    deciding = {
        "operator": job.operator,
        "config": {name: value for name, value in config.items() if name not in operator.tuning},
        "inputs": [[item.name, _where(item), item.trigger] for item in job.inputs],
        "outputs": len(job.outputs),
        "update_strategy": job.update_strategy,
        "unique_key": job.unique_key,
        "execution_strategy": job.execution_strategy,
    }
    return _sha256(canonical_json(deciding))


def listed_addresses(job: Job, operator: OperatorSpec | None) -> ListedAddresses | None:
    """The memo hash does not cover them: those that a task may read are part of its memo key."""
    if operator is None or operator.addresses is None or len(job.inputs) != 1:
        return None
    return operator.addresses(job.config, [item.name for item in job.inputs])


def _writes_files_alone(job: Job) -> bool:
    """No user code, no secrets, no source, and no effect but files of datasets of its own."""
    plain = job.source is None and job.bootstrap is None and job.udf is None and not job.secrets
    own = all(output.dataset is None and output.storage is Storage.PARQUET for output in job.outputs)
    return plain and own and bool(job.outputs) and bool(job.inputs)


def dataset_ids(dag: Dag, org: OrgId) -> dict[JobOutput, DatasetId]:
    """Every output of every job is a dataset of its own, or a declared one that others may write too."""
    declared = declared_ids(dag, org)
    return {
        JobOutput(job.name, output.index): (
            dataset_id(org, dag.name, job.name, output.index) if output.dataset is None else declared[output.dataset]
        )
        for job in dag.jobs
        for output in job.outputs
    }


def declared_ids(dag: Dag, org: OrgId) -> dict[DatasetName, DatasetId]:
    return {item.name: declared_dataset_id(org, dag.name, item.name) for item in dag.buffered}


def generation_ids(dag: Dag, org: OrgId, basis: Basis = WRITTEN) -> dict[DatasetId, DatasetVersion]:
    """The generation of each dataset that this version of the DAG serves."""
    lineages, declared = lineage_hashes(dag, basis), set(declared_ids(dag, org).values())
    return {
        dataset: generation_id(dataset, BUFFERED if dataset in declared else lineages[output.job])
        for output, dataset in dataset_ids(dag, org).items()
    } | {dataset: generation_id(dataset, BUFFERED) for dataset in declared}


def job_hash(dag: Dag, job: Job, basis: Basis = WRITTEN) -> ConfigHash:
    return basis.config_hashes.get(job.name) or config_hash(job, dag.tuning.get(job.operator, ()))


def lineage_hashes(dag: Dag, basis: Basis = WRITTEN) -> dict[JobName, LineageHash]:
    jobs = {job.name: job for job in dag.jobs}
    lineages: dict[JobName, LineageHash] = {}
    for name in job_order(dag):
        job = jobs[name]
        # A declared dataset does not depend on the job that writes it.
        above = [lineages[element.upstream.job] for element in job.inputs if isinstance(element.upstream, JobOutput)]
        parts: list[Any] = [job_hash(dag, job, basis), above]
        if foreign := _foreign(job, basis):
            parts.append(foreign)
        lineages[name] = LineageHash(_sha256(canonical_json(parts)))
    return lineages


def foreign_names(job: Job) -> set[DatasetName]:
    """The datasets of other DAGs that a job reads."""
    return {element.upstream.name for element in job.inputs if isinstance(element.upstream, ForeignDataset)}


def _foreign(job: Job, basis: Basis) -> list[list[str]]:
    return [[name, str(basis.foreign[name])] for name in sorted(foreign_names(job)) if name in basis.foreign]


def _wire(item: DagInput) -> dict[str, Any]:
    match item.upstream:
        case JobOutput(job, output):
            upstream: list[Any] = ["job", job, output]
        case DeclaredDataset(name) | ForeignDataset(name):
            upstream = ["dataset", name]
        case _:
            assert_never(item.upstream)
    # Included only if it is not the default, so that earlier hashes do not change.
    return {"name": item.name, "from": upstream, "where": _where(item)} | ({} if item.trigger else {"trigger": False})


def _where(item: DagInput) -> Any:
    return None if item.where is None else as_json(item.where)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
