"""What must not be done to versions is refused: what, where, and the next verb; and everything stays as it was."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

from tests.support.dispatcher.control import PULL, Org
from tests.support.dispatcher.mill_and_shop import MILL, SHOP
from tests.support.dispatcher.releases import build
from tests.support.operators import registered
from tests.support.systems.command_line import Running, Trace
from tests.support.verbs import trigger

pytestmark = pytest.mark.usefixtures("known_operators")

STATE = """
SELECT (SELECT array_agg((dag_name, dag_version_id)::text ORDER BY 1) FROM dag_current_versions) AS active,
       (SELECT array_agg((id, state, when_ready)::text ORDER BY 1) FROM releases) AS releases,
       (SELECT array_agg((id, left_at)::text ORDER BY 1) FROM dataset_versions) AS generations,
       (SELECT array_agg((id, status)::text ORDER BY 1) FROM tasks) AS tasks,
       (SELECT count(*) FROM backfills) AS backfills, (SELECT count(*) FROM dag_versions) AS versions,
       (SELECT count(*) FROM catch_ups) AS compared
"""
PEOPLE = """
name: {0}
defaults: {{runtime: ecs_platform}}
jobs:
  - {{name: {0}, operator: pull, inputs: [{{from: {{dataset: flour}}}}]}}
"""


@dataclass(frozen=True)
class Mills:
    """`mill`, and `shop` that reads it; both were released together, and a release of both is being built."""

    running: Running
    trace: Trace
    mill: Path
    former: str
    """The version of `mill` before the first release."""
    serving: str
    building: str

    def state(self) -> object:
        return tuple(self.running.do(self.running.control.pool.fetchrow(STATE)))

    def refused(self, *words: str) -> dict[str, str]:
        """What the verb says; it has changed nothing."""
        before = self.state()
        said = self.trace(*words, "--json")
        assert said.code != 0, said.out
        assert self.state() == before, "nothing is half-done"
        found: dict[str, str] = said.json["error"]
        return found


@pytest.fixture
def mills(running: Running, trace: Trace, tmp_path: Path) -> Iterator[Mills]:
    with registered(pull=PULL):
        mill, shop = tmp_path / "mill.yaml", tmp_path / "shop.yaml"
        mill.write_text(MILL.format(1, 1))
        shop.write_text(SHOP)
        for file in (mill, shop):
            assert trace("dag", "deploy", str(file), "--activate").code == 0
        org = Org(running.do(running.control.pool.fetchval("SELECT id FROM orgs LIMIT 1")), uuid4())
        running.do(trigger(running.control, org.id, "mill", "ask", start=0, end=9, request_id=uuid4()))
        running.do(build(running.control))
        former = trace("dag", "show", "mill", "--json").json["active_version"]
        mill.write_text(MILL.format(2, 1))
        serving = trace("deploy", str(mill), "--when-ready", "--json").json["release"]["id"]
        running.do(build(running.control))
        mill.write_text(MILL.format(3, 1))
        building = trace("deploy", str(mill), "--json").json["release"]["id"]
        yield Mills(running, trace, mill, former, serving, building)


def test_a_plan_that_moved(mills: Mills) -> None:
    plan = mills.trace("plan", str(mills.mill), "--json").json["hash"]
    reader = mills.mill.with_name("cafe.yaml")
    reader.write_text(PEOPLE.format("cafe"))
    assert mills.trace("dag", "deploy", str(reader), "--now").code == 0
    error = mills.refused("deploy", str(mills.mill), "--plan", plan)
    assert ("the plan has changed" in error["message"], "trace plan" in error["hint"]) == (True, True), error


def test_promoting_what_is_not_ready_has_failed_or_was_abandoned(mills: Mills) -> None:
    error = mills.refused("release", "promote", mills.building)
    assert ("this one is Building" in error["message"], error["where"]) == (True, mills.building), error
    assert f"trace release show {mills.building}" in error["hint"]
    mills.running.do(build(mills.running.control, fails=lambda _: True))
    error = mills.refused("release", "promote", mills.building)
    assert ("this one is Building" in error["message"], error["where"]) == (True, mills.building), error
    message = mills.trace("release", "show", mills.building, "--json").json["release"]["message"]
    assert message == "1 partition failed: `trace task retry` continues"
    assert mills.trace("release", "abandon", mills.building).code == 0
    for force in ((), ("--force", "--yes")):
        error = mills.refused("release", "promote", mills.building, *force)
        assert ("this one is Abandoned" in error["message"], error["where"]) == (True, mills.building), error
        assert "deploy" in error["hint"]


def test_taking_one_dag_of_a_group_back(mills: Mills) -> None:
    error = mills.refused("dag", "activate", "mill", mills.former)
    assert ("was released together with shop" in error["message"], error["where"]) == (True, "mill"), error
    assert f"trace release rollback {mills.serving}" in error["hint"]
    error = mills.refused("release", "rollback", mills.building)
    assert ("only the release that serves" in error["message"], error["where"]) == (True, mills.building), error
    assert "trace release list" in error["hint"]


def test_a_budget_of_nothing_and_a_range_that_is_not_there(mills: Mills) -> None:
    for budget in ("requests=0", "bytes=0", "tasks=0", "hours=0"):
        error = mills.refused("backfill", "mill", "bake", "--range", "0-9", "--budget", budget)
        assert ("allows nothing" in error["message"], error["where"], "--dry-run" in error["hint"]) == (
            True,
            "--budget",
            True,
        ), error
    error = mills.refused("backfill", "mill", "bake", "--range", "5000-6000")
    assert ("has a partition in 5000-6000" in error["message"], error["where"]) == (True, "/start"), error
    assert "trace dataset show" in error["hint"]


def test_a_second_release_takes_the_place_of_the_one_that_is_built(mills: Mills) -> None:
    """The newer text is what its author wants now. The former cannot be promoted any more, and says why."""
    mills.mill.write_text(MILL.format(4, 1))
    newer = mills.trace("deploy", str(mills.mill), "--json").json["release"]["id"]
    shown = mills.trace("release", "show", mills.building, "--json").json["release"]
    assert (shown["state"], newer in shown["message"]) == ("Abandoned", True)
    error = mills.refused("release", "promote", mills.building)
    assert ("this one is Abandoned" in error["message"], error["where"]) == (True, mills.building), error


def test_deleting_what_others_read(mills: Mills) -> None:
    for words in (("datasets", "drop", "flour", "--yes"), ("dag", "deactivate", "mill", "--yes")):
        error = mills.refused(*words)
        assert ("is read by shop" in error["message"], bool(error["where"])) == (True, True), error
        assert "shop" in error["hint"], error
    error = mills.refused("dag", "delete", "mill", "--yes")
    assert ("is active" in error["message"] or "being built" in error["message"], error["where"]) == (True, "mill")
    assert "trace " in error["hint"]
