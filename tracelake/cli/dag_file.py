"""A DAG's file as `trace dag validate` and `deploy` take it: read with what lies beside it, and checked as a whole."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tracelake.errors import BadInput, InvalidDag, Problem

if TYPE_CHECKING:
    from tracelake.cli.udf_folders import FromFolder
    from tracelake.domain.dag.catalog import Catalog
    from tracelake.domain.dag.parse import Dag

ELSEWHERE = frozenset({"unknown_dataset", "unknown_alert", "unknown_role"})
"""What only a running system can say: whether there is one of this name."""


@dataclass(frozen=True)
class DagFile:
    text: str
    """With the ABIs and the hashes of the code that lie beside it."""
    bundles: list[FromFolder]
    problems: list[Problem]
    """With what lies beside it."""


@dataclass(frozen=True)
class Checked:
    dag: Dag | None
    """None where something is not known without a running system."""
    unchecked: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()


def read_dag_file(file: str) -> DagFile:
    from tracelake.cli.abi_files import with_abi_files
    from tracelake.cli.udf_folders import with_udf_folders

    beside, problems = Path() if file == "-" else Path(file).parent, list[Problem]()
    text = with_abi_files(_text_of(file), beside, problems)
    text, bundles = with_udf_folders(text, beside, problems)
    return DagFile(text, bundles, problems)


def check_dag_file(source: DagFile) -> Checked:
    """Raises InvalidDag with everything that is wrong with it, what lies beside it included."""
    from tracelake.domain.dag.parse import parse_dag

    try:
        dag = parse_dag(source.text, built_in())
    except InvalidDag as wrong:
        unchecked = tuple(problem for problem in wrong.problems if problem.code in ELSEWHERE)
        left = [
            problem
            for problem in wrong.problems
            if problem.code not in ELSEWHERE and not _follows(problem, source.problems)
        ]
        if left or source.problems:
            raise InvalidDag(sorted([*left, *source.problems]), wrong.warnings) from None
        return Checked(None, unchecked, wrong.warnings)
    return Checked(dag, warnings=dag.warnings)


def built_in() -> Catalog:
    from tracelake.dispatcher.dags.catalog import operators
    from tracelake.dispatcher.runtimes.known import runtime_specs
    from tracelake.domain.dag.catalog import Catalog
    from tracelake.settings import RUNTIMES

    return Catalog(operators(), runtime_specs(RUNTIMES), roles=frozenset())


def _follows(problem: Problem, beside: list[Problem]) -> bool:
    """Of the map that names a folder or file which could not be used: the rest of it follows from that."""
    return any(problem.field.startswith(item.field.rpartition(".")[0]) for item in beside)


def _text_of(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_bytes().decode()
    except OSError as wrong:
        raise BadInput(f"the file cannot be read: {wrong.strerror}", where=file) from None
    except UnicodeDecodeError as wrong:
        raise BadInput(f"the file is not UTF-8: byte {wrong.start}", where=file) from None
