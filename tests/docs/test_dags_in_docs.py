"""Every DAG and every job that the documentation shows is one that this Trace accepts, without a warning."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.support import ROOT
from tests.support.systems.walk import with_job_runs
from tracelake.cli.abi_files import with_abi_files
from tracelake.cli.udf_folders import with_udf_folders
from tracelake.dispatcher.dags.catalog import operators
from tracelake.dispatcher.runtimes.known import runtime_specs
from tracelake.domain.dag.catalog import Catalog, PublishedDataset
from tracelake.domain.dag.model import Dag
from tracelake.domain.dag.parse import parse_dag
from tracelake.errors import Problem
from tracelake.settings import RUNTIMES

DAGS = ROOT / "dags"
YAML_BLOCK = re.compile(r"^```ya?ml\n(.*?)^```", re.DOTALL | re.MULTILINE)
CONTEXT = """\
name: shown
defaults: {runtime: ecs_platform}
jobs:
  - {name: load, operator: noop, runtime: dispatcher, source: {kind: manual}}
  - {name: pieces, operator: noop, runtime: dispatcher, inputs: [{from: {job: load}}]}
  - {name: ingest, operator: cryo_ingest, config: {rpc_pool: dev}, inputs: [{from: {job: pieces}}],
     outputs: [blocks, transactions, logs]}
  - {name: blocks, operator: noop, inputs: [{from: {job: ingest, output: blocks}}]}
  - {name: transactions, operator: noop, inputs: [{from: {job: ingest, output: transactions}}]}
  - {name: transfers, operator: noop, inputs: [{from: {job: ingest, output: logs}}]}
  - {name: follow, operator: block_follower, source: {kind: always_on}, config: {rpc_pool: dev, start_block: 0},
     outputs: [blocks, transactions, logs, final]}
  - {name: gather, operator: range_aggregator, runtime: dispatcher, config: {size: 50},
     inputs: [{from: {job: follow, output: final}}]}
"""
"""What the jobs that are shown alone read from."""


def catalog(text: str) -> Catalog:
    """As a running system knows it, with the alerts and the datasets of other DAGs that examples name."""
    own = YAML(typ="safe").load(text).get("publish", {})
    names = {"transfers", "orders", "tokens", "alert_events"} - set(own)
    published = {name: PublishedDataset("elsewhere") for name in names}
    alerts = frozenset({"whales", "large_transfers"})
    return Catalog(operators(), runtime_specs(with_job_runs(RUNTIMES)), published, alerts=alerts)


def blocks() -> Iterator[tuple[str, str]]:
    for page in sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]):
        text = page.read_text(encoding="utf-8")
        for found in YAML_BLOCK.finditer(text):
            shown = found[1]
            if "operator:" in shown or "jobs:" in shown:
                yield f"{page.relative_to(ROOT)}:{text[: found.start()].count(chr(10)) + 1}", shown


def whole(shown: str) -> str:
    """A DAG; jobs that are shown alone are put among those that they read from."""
    shown = shown.replace("BUNDLE_SHA256", "0" * 64)
    if shown.startswith("name:"):
        return shown
    indent = " " * (2 - len(shown) + len(shown.lstrip()))
    lines = "".join(f"{indent}{line}" for line in shown.splitlines(keepends=True))
    return CONTEXT + lines


def accepted(text: str, beside: Path) -> Dag:
    problems: list[Problem] = []
    text, _ = with_udf_folders(with_abi_files(text, beside, problems), beside, problems)
    assert not problems
    made = parse_dag(text, catalog(text))
    assert not made.warnings
    return made


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    (tmp_path / "abis").mkdir()
    events: list[Any] = [{"type": "event", "name": name, "inputs": []} for name in ("Swap", "Mint")]
    (tmp_path / "abis" / "pool.json").write_text(json.dumps(events))
    return tmp_path


@pytest.mark.parametrize(("place", "shown"), list(blocks()), ids=[place for place, _ in blocks()])
def test_what_a_page_shows_is_accepted(place: str, shown: str, beside: Path) -> None:
    text = whole(shown)
    names = {job["name"] for job in YAML(typ="safe").load(text)["jobs"]}
    assert names == {job.name for job in accepted(text, beside).jobs}, place


@pytest.mark.parametrize("file", sorted(DAGS.glob("*.yaml")), ids=lambda file: file.name)
def test_what_comes_with_trace_is_accepted(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert accepted(text, DAGS).jobs


def test_the_pages_that_show_dags_are_looked_at() -> None:
    """A block that is not marked as YAML, or a pattern that finds nothing, would be missed in silence."""
    pages = {place.partition(":")[0] for place, _ in blocks()}
    expected = ("reference/dag_yaml", "how-to/raise_alerts", "concepts/buffered_datasets", "how-to/write_a_function")
    assert pages >= {f"docs/{name}.md" for name in (*expected, "reference/operators/sql")}
    for page in (ROOT / "docs").rglob("*.md"):
        text = YAML_BLOCK.sub("", page.read_text(encoding="utf-8"))
        assert not re.search(r"^\s*(- )?operator: ", text, re.MULTILINE), f"{page}: show it as ```yaml"
