"""`python`: a function of an installed module gets DataFrames by input name and gives DataFrames back."""

from __future__ import annotations

import pytest

from tests.operators.rig import Rig
from tracelake.errors import InvalidDag

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("numbers")]

MODULE = "tests.operators.functions"


def dag(function: str, outputs: str = "[{name: made}]", publish: str = "made: {job: work}") -> str:
    return f"""
name: d
defaults: {{runtime: ecs_platform, max_attempts: 1}}
jobs:
  - {{name: ask, operator: noop, runtime: dispatcher, source: {{kind: manual}}}}
  - {{name: numbers, operator: numbers, inputs: [{{from: {{job: ask}}}}]}}
  - name: work
    operator: python
    config: {{function: "{function}", args: {{times: 3}}}}
    inputs: [{{from: {{job: numbers}}}}]
    outputs: {outputs}
publish:
  {publish}
"""


async def test_a_function_makes_a_dataset(rig: Rig) -> None:
    await rig.deploy(dag(f"{MODULE}:doubled"))
    states = await rig.run("d", "ask", start=1, end=2)
    assert states["work"] == ["Completed"], await rig.error("work")
    assert await rig.rows("made") == [{"block_number": 1, "more": 30}, {"block_number": 2, "more": 60}]


async def test_what_was_there_no_more_when_it_was_read_is_read_again_as_of_a_later_commit(rig: Rig) -> None:
    await rig.deploy(dag(f"{MODULE}:too_late").replace("max_attempts: 1", "max_attempts: 2"))
    states = await rig.run("d", "ask", start=1, end=2)
    assert states["work"] == ["Failed"]
    assert "was swept since" in await rig.error("work")
    (task,) = await rig.fetch(
        "SELECT t.next_retry_at FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = 'work'"
    )
    assert task["next_retry_at"] is not None


@pytest.mark.parametrize("function", ["halves", "in_order"])
async def test_two_outputs_are_committed_together_by_name_or_in_order(rig: Rig, function: str) -> None:
    publish = "low: {job: work, output: 0}\n  high: {job: work, output: 1}"
    await rig.deploy(dag(f"{MODULE}:{function}", "[{name: a}, {name: b}]", publish))
    states = await rig.run("d", "ask", start=0, end=9)
    assert states["work"] == ["Completed"], await rig.error("work")
    assert [row["block_number"] for row in await rig.rows("low")] == [0, 1, 2, 3, 4]
    assert [row["block_number"] for row in await rig.rows("high")] == [5, 6, 7, 8, 9]


async def test_the_names_of_outputs_are_those_they_are_published_by_and_the_error_says_them(rig: Rig) -> None:
    await rig.deploy(dag(f"{MODULE}:halves", "[{name: low}, {name: high}]", "low: {job: work, output: 0}"))
    await rig.run("d", "ask", start=0, end=9)
    said = await rig.error("work")
    assert "the function gave high, low; the outputs are low, work_1" in said
    assert "as they are published, else by job and place" in said


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("no.such.module:f", "module no.such.module cannot be imported on this worker: ModuleNotFoundError"),
        (f"{MODULE}:absent", f"module {MODULE} has no function absent"),
        (f"{MODULE}:nothing", "is not a DataFrame but NoneType"),
        (f"{MODULE}:halves", "the function gave high, low; the outputs are made"),
        (f"{MODULE}:broken", "cannot do ['numbers'] with {'times': 3}"),
    ],
)
async def test_what_is_wrong_with_a_function_is_said(rig: Rig, function: str, said: str) -> None:
    await rig.deploy(dag(function))
    states = await rig.run("d", "ask", start=1, end=2)
    assert states["work"] == ["Failed"]
    assert said in await rig.error("work")


@pytest.mark.parametrize("function", ["no_colon", "a.b:c:d", "../x:y", "os:system('x')", ":f", "a:"])
async def test_the_form_of_the_name_is_checked_at_deploy_and_nothing_is_imported(rig: Rig, function: str) -> None:
    with pytest.raises(InvalidDag, match="named by its module"):
        await rig.deploy(dag(function))
