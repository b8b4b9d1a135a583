"""The DAGs that come with Trace can be deployed as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from trace_platform.cli.dag import ELSEWHERE
from trace_platform.cli.udf_folders import with_udf_folders
from trace_platform.dispatcher.catalog import operators
from trace_platform.dispatcher.runtimes import runtime_specs
from trace_platform.domain.catalog import Catalog
from trace_platform.domain.dag import parse_dag
from trace_platform.errors import InvalidDag
from trace_platform.lite.demo import quickstart
from trace_platform.settings import RUNTIMES

FOLDER = Path(__file__).parent.parent / "dags"


@pytest.mark.parametrize("file", sorted(path.name for path in FOLDER.glob("*.yaml")))
def test_every_example_is_valid(file: str) -> None:
    text, _ = with_udf_folders((FOLDER / file).read_text(), FOLDER)
    assert problems(text) <= ELSEWHERE  # what only a running system knows


def problems(text: str) -> set[str]:
    try:
        parse_dag(text, Catalog(operators(), runtime_specs(RUNTIMES)))
    except InvalidDag as wrong:
        return {problem.code for problem in wrong.problems}
    return set()


def test_the_demo_runs_the_example_that_a_reader_finds_in_dags() -> None:
    assert quickstart() == (FOLDER / "evm_quickstart.yaml").read_text()
