"""`trace plan`, `deploy` and `release`: what a person sees of a change, and does with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID, uuid4

import pyarrow as pa
import pytest

from tests.support.dispatcher.comparisons import compared
from tests.support.dispatcher.control import PULL, WORKS, Org
from tests.support.dispatcher.releases import build
from tests.support.dispatcher.sql_jobs import Loads
from tests.support.operators import registered
from tests.support.systems.command_line import Running, Trace
from tests.support.verbs import trigger
from tracelake.dispatcher.releases.request_comparisons import request_comparisons

pytestmark = pytest.mark.usefixtures("known_operators")

MILL = """\
name: mill
defaults: {{runtime: ecs_platform}}
jobs:
  - {{name: ask, operator: pull, source: {{kind: manual}}}}
  - {{name: grind, operator: pull, config: {{n: {0}}}, inputs: [{{from: {{job: ask}}}}]}}
publish:
  flour: {{job: grind}}
"""
ORDERS = """\
name: mill
defaults: {{runtime: ecs_platform}}
jobs:
  - {{name: ask, operator: works, source: {{kind: manual}}}}
  - name: orders
    operator: sql
    config: {{query: "SELECT block_number, a AS x, {0} AS y FROM ask"}}
    inputs: [{{from: {{job: ask}}}}]
  - name: sums
    operator: sql
    config: {{query: "SELECT block_number, x + 1 AS more FROM orders"}}
    inputs: [{{from: {{job: orders}}}}]
"""


@pytest.fixture(autouse=True)
def pulling() -> Iterator[None]:
    with registered(pull=PULL):
        yield


def acme(running: Running) -> Org:
    return Org(running.do(running.control.pool.fetchval("SELECT id FROM orgs LIMIT 1")), uuid4())


@pytest.fixture
def changed(running: Running, trace: Trace, file: Path) -> Path:
    """The file of a DAG that has processed a range, with a change."""
    file.write_text(MILL.format(1))
    said = trace("dag", "deploy", str(file), "--activate")
    assert said.code == 0, said.err
    assert "it is the active version" in said.out
    running.do(trigger(running.control, acme(running).id, "mill", "ask", start=0, end=9, request_id=uuid4()))
    running.do(build(running.control))
    file.write_text(MILL.format(2))
    return file


def test_a_plan_prints_what_happens_to_each_dataset_and_a_hash(changed: Path, trace: Trace) -> None:
    said = trace("plan", str(changed))
    assert said.code == 0, said.err
    flour = next(line for line in said.out.splitlines() if "flour" in line)
    assert "edited" in flour
    assert "build" in flour
    found = trace("plan", str(changed), "--json").json
    assert f"plan {found['hash']}" in said.out
    changed.write_text(MILL.format(1))
    assert "nothing changes" in trace("plan", str(changed)).out


def test_a_plan_says_which_columns_change_and_which_are_read(running: Running, trace: Trace, file: Path) -> None:
    rows = Loads({"0-9": pa.table({"block_number": [1], "a": [2], "b": [3]})})
    file.write_text(ORDERS.format("b"))
    with registered(works=WORKS):
        assert trace("dag", "deploy", str(file), "--activate").code == 0
        running.do(trigger(running.control, acme(running).id, "mill", "ask", start=0, end=9, request_id=uuid4()))
        running.do(build(running.control, content=rows.content))
        file.write_text(ORDERS.format("b + 1"))
        said = trace("plan", str(file))
    assert "sums[0] uses its files again: in orders only y can change, and it reads block_number, x" in said.out
    assert "reuse, 1 there" in said.out


def test_a_release_is_built_promoted_and_rolled_back_by_verbs(changed: Path, running: Running, trace: Trace) -> None:
    plan = trace("plan", str(changed), "--json").json["hash"]
    said = trace("deploy", str(changed), "--plan", plan)
    assert said.code == 0, said.err
    assert "Building" in said.out
    (release,) = trace("release", "list", "--json").json["releases"]
    running.do(build(running.control))
    shown = trace("release", "show", release["id"])
    assert "Ready" in shown.out
    assert f"next: trace release promote {release['id']}" in shown.out
    said = trace("release", "promote", release["id"])
    assert (said.code, "serves" in said.out) == (0, True), said.err
    assert "Serving" in trace("release", "list").out
    said = trace("release", "rollback", release["id"])
    assert (said.code, "was rolled back" in said.out) == (0, True), said.err


def test_refusals_say_what_to_do(changed: Path, trace: Trace) -> None:
    said = trace("deploy", str(changed), "--plan", "0" * 64)
    assert (said.code, "the plan has changed" in said.err, "trace plan" in said.err) == (1, True, True)
    release = trace("deploy", str(changed), "--json").json["release"]["id"]
    said = trace("release", "promote", release)
    assert (said.code, "this one is Building" in said.err) == (1, True)
    said = trace("release", "rollback", release)
    assert (said.code, "only the release that serves" in said.err) == (1, True)
    assert trace("release", "abandon", release, "--json").json["state"] == "Abandoned"
    said = trace("release", "show", str(uuid4()))
    assert (said.code, "trace release list" in said.err) == (1, True)


def test_forcing_asks_first_and_says_what_is_missing(changed: Path, trace: Trace) -> None:
    release = trace("deploy", str(changed), "--json").json["release"]["id"]
    said = trace("release", "promote", release, "--force")
    assert (said.code, "Not built: 1 partition," in said.err) == (1, True)
    assert trace("release", "promote", release, "--force", "--yes").code == 0


def test_limits_block_a_promotion_with_the_figures_and_forcing_asks(
    changed: Path, running: Running, trace: Trace
) -> None:
    limited = MILL.replace("config: {{n: {0}}},", "config: {{n: {0}}}, cutover: {{max_missing_keys: 0}},")
    changed.write_text(limited.format(2))
    release = trace("deploy", str(changed), "--json").json["release"]["id"]
    running.do(build(running.control))
    detail = running.do(
        request_comparisons(running.control.pool, running.control.after_commit, acme(running).as_user, UUID(release))
    )
    assert [item.state for item in detail.comparisons] == ["Waiting"]
    assert running.do(compared(running.control, only_a=7)) == ["flour"]
    said = trace("release", "show", release, "--diff")
    assert said.code == 0, said.err
    assert "exceeded: missing keys: 7 (7% of 100 rows), and `max_missing_keys` is 0" in said.out
    for words in (("promote", release), ("promote", release, "--force")):
        said = trace("release", *words)
        assert (said.code, "flour" in said.err, "missing keys: 7" in said.err) == (1, True, True)
    said = trace("release", "promote", release, "--force", "--yes")
    assert (said.code, "serves" in said.out) == (0, True), said.err
    message = trace("release", "show", release, "--json").json["release"]["message"]
    assert message.startswith("promoted by force: flour: missing keys: 7")


def test_now_activates_at_once_and_says_what_is_empty(changed: Path, trace: Trace) -> None:
    said = trace("dag", "deploy", str(changed), "--now")
    assert said.code == 0, said.err
    assert "it is the active version" in said.out
    assert "empty until the jobs have caught up (`trace gaps mill`): flour" in said.out


def test_files_with_problems_are_named_and_nothing_is_deployed(changed: Path, tmp_path: Path, trace: Trace) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("name: wrong\njobs:\n  - {name: a, operator: pul, source: {kind: manual}}\n")
    said = trace("deploy", str(changed), str(wrong))
    assert said.code == 1
    assert f"{wrong}:3:" in said.err
    assert trace("release", "list", "--json").json["releases"] == []
