"""Reads a DAG file with the ABI files and code folders that it names, and checks all of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tracelake.cli import printing
from tracelake.errors import BadInput, InvalidDag, Problem

if TYPE_CHECKING:
    from tracelake.cli.udf_folders import FromFolder
    from tracelake.domain.dag.catalog import Catalog
    from tracelake.domain.dag.model import Dag
    from tracelake.wire.user.dags import DagWarning

ELSEWHERE = frozenset({"unknown_dataset", "unknown_alert", "unknown_role"})
"""Only a running system knows whether these names exist."""


@dataclass(frozen=True)
class DagFile:
    text: str
    """With ABIs and bundle hashes filled in."""
    bundles: list[FromFolder]
    problems: list[Problem]
    """In the files that it names."""


@dataclass(frozen=True)
class Checked:
    dag: Dag | None
    """None if part of it cannot be checked without a running system."""
    unchecked: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()


def read_dag_file(file: str) -> DagFile:
    from tracelake.cli.abi_files import with_abi_files
    from tracelake.cli.udf_folders import with_udf_folders

    folder, problems = Path() if file == "-" else Path(file).parent, list[Problem]()
    text = with_abi_files(_text_of(file), folder, problems)
    text, bundles = with_udf_folders(text, folder, problems)
    return DagFile(text, bundles, problems)


@contextmanager
def problems_shown(file: str, *, json: bool) -> Iterator[None]:
    """Prints problems as compilers do, so that editors can jump to them. In JSON they are part of the error."""
    try:
        yield
    except InvalidDag as error:
        if json:
            raise
        for problem in error.problems:
            printing.err.print(problem_line(file, problem), markup=False)
        show_warnings(file, error.warnings)
        sys.exit(1)


def problem_line(file: str, problem: Problem | DagWarning, kind: str = "") -> str:
    suggestion = f" ({problem.suggestion})" if problem.suggestion else ""
    return f"{file}:{problem.line}:{problem.column}: {kind}{problem.field or 'file'}: {problem.reason}{suggestion}"


def show_warnings(file: str, warnings: Sequence[Problem | DagWarning]) -> None:
    for warning in warnings:
        printing.err.print(problem_line(file, warning, "warning: "), markup=False)


def check_dag_file(source: DagFile) -> Checked:
    """Raises InvalidDag with all problems of the DAG and of the files that it names."""
    from tracelake.domain.dag.parse import parse_dag

    try:
        dag = parse_dag(source.text, built_in())
    except InvalidDag as error:
        unchecked = tuple(problem for problem in error.problems if problem.code in ELSEWHERE)
        left = [
            problem
            for problem in error.problems
            if problem.code not in ELSEWHERE and not _follows(problem, source.problems)
        ]
        if left or source.problems:
            raise InvalidDag(sorted([*left, *source.problems]), error.warnings) from None
        return Checked(None, unchecked, error.warnings)
    return Checked(dag, warnings=dag.warnings)


def built_in() -> Catalog:
    from tracelake.dispatcher.dags.catalog import operators
    from tracelake.dispatcher.runtimes.known import runtime_specs
    from tracelake.domain.dag.catalog import Catalog
    from tracelake.settings import RUNTIMES

    return Catalog(operators(), runtime_specs(RUNTIMES), roles=frozenset())


def _follows(problem: Problem, others: list[Problem]) -> bool:
    """Whether the problem is a consequence of a file that could not be used, named in the same mapping."""
    return any(problem.field.startswith(other.field.rpartition(".")[0]) for other in others)


def _text_of(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_bytes().decode()
    except OSError as error:
        raise BadInput(f"the file cannot be read: {error.strerror}", where=file) from None
    except UnicodeDecodeError as error:
        raise BadInput(f"the file is not UTF-8: byte {error.start}", where=file) from None
