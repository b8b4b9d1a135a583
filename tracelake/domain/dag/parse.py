"""Reads and checks a DAG's YAML: the only entry point to the DAG language.

In order: `yaml_nodes` (text to nodes with positions), `read` (nodes to a draft, each field by its type), `check_jobs`
(each job by itself, against the catalog), `check_wiring` (jobs together). Each continues after a fault, so that one
pass finds them all. `docs/reference/dag_yaml.md` explains the language.
"""

from __future__ import annotations

from tracelake.domain.dag.catalog import Catalog
from tracelake.domain.dag.check_wiring import check_dag
from tracelake.domain.dag.effects import warn_of_no_effect
from tracelake.domain.dag.hashes import (
    canonical_json,
    hash_yaml,
)
from tracelake.domain.dag.model import (
    Dag,
)
from tracelake.domain.dag.problems import Problems
from tracelake.domain.dag.read import read_dag
from tracelake.domain.dag.yaml_nodes import plain, read_yaml


def parse_dag(text: str | bytes, catalog: Catalog) -> Dag:
    """The DAG with every default filled in, or InvalidDag with everything that is wrong with it.

    Takes up to a few seconds for the largest file allowed: a server calls it in a thread.
    """
    root, found = read_yaml(text)
    problems = Problems(root, found)
    draft = read_dag(root, problems, catalog.runtimes)
    jobs, publish, buffered = check_dag(draft, catalog, problems)
    warn_of_no_effect(draft, jobs, catalog, problems)
    problems.raise_if_any()
    canonical = canonical_json(plain(root))
    tuning = {job.operator: catalog.operators[job.operator].tuning for job in jobs}
    return Dag(draft.name, jobs, publish, canonical, hash_yaml(canonical), buffered, tuning, problems.warnings)
