"""The DAGs that come with Trace can be deployed as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from trace_platform.dispatcher.catalog import operators
from trace_platform.dispatcher.runtimes import runtime_specs
from trace_platform.domain.catalog import Catalog
from trace_platform.domain.dag import parse_dag
from trace_platform.lite.demo import quickstart
from trace_platform.settings import RUNTIMES

FOLDER = Path(__file__).parent.parent / "dags"


@pytest.mark.parametrize("file", sorted(path.name for path in FOLDER.glob("*.yaml")))
def test_every_example_is_valid(file: str) -> None:
    assert parse_dag((FOLDER / file).read_text(), Catalog(operators(), runtime_specs(RUNTIMES))).jobs


def test_the_demo_runs_the_example_that_a_reader_finds_in_dags() -> None:
    assert quickstart() == (FOLDER / "evm_quickstart.yaml").read_text()
