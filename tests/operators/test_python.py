"""`python`: a function of an installed module gets DataFrames by input name and returns DataFrames."""

from __future__ import annotations

import pytest

from tests.support.systems.operators import OperatorSystem, numbers_dag
from tracelake.errors import InvalidDag

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("numbers")]

MODULE = "tests.support.spark.functions"


def dag(function: str, outputs: str = "[{name: made}]", publish: str = "made: {job: work}") -> str:
    return f"""{numbers_dag()}  - name: work
    operator: python
    config: {{function: "{function}", args: {{times: 3}}}}
    inputs: [{{from: {{job: numbers}}}}]
    outputs: {outputs}
publish:
  {publish}
"""


async def test_a_function_makes_a_dataset(system: OperatorSystem) -> None:
    await system.deploy(dag(f"{MODULE}:doubled"))
    states = await system.run("d", "ask", start=1, end=2)
    assert states["work"] == ["Completed"], await system.error("work")
    assert await system.rows("made") == [{"block_number": 1, "more": 30}, {"block_number": 2, "more": 60}]


async def test_a_task_whose_input_was_swept_is_retried(system: OperatorSystem) -> None:
    await system.deploy(dag(f"{MODULE}:too_late").replace("max_attempts: 1", "max_attempts: 2"))
    states = await system.run("d", "ask", start=1, end=2)
    assert states["work"] == ["Failed"]
    assert "was swept since" in await system.error("work")
    (task,) = await system.fetch(
        "SELECT t.next_retry_at FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = 'work'"
    )
    assert task["next_retry_at"] is not None


@pytest.mark.parametrize("function", ["halves", "in_order"])
async def test_two_outputs_are_committed_together_by_name_or_in_order(system: OperatorSystem, function: str) -> None:
    publish = "low: {job: work, output: 0}\n  high: {job: work, output: 1}"
    await system.deploy(dag(f"{MODULE}:{function}", "[{name: a}, {name: b}]", publish))
    states = await system.run("d", "ask", start=0, end=9)
    assert states["work"] == ["Completed"], await system.error("work")
    assert [row["block_number"] for row in await system.rows("low")] == [0, 1, 2, 3, 4]
    assert [row["block_number"] for row in await system.rows("high")] == [5, 6, 7, 8, 9]


async def test_outputs_are_named_as_published_and_the_error_lists_the_names(system: OperatorSystem) -> None:
    await system.deploy(dag(f"{MODULE}:halves", "[{name: low}, {name: high}]", "low: {job: work, output: 0}"))
    await system.run("d", "ask", start=0, end=9)
    message = await system.error("work")
    assert "the function returned high, low; the outputs are low, work_1" in message
    assert "as they are published, else by job and place" in message


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("no.such.module:f", "module no.such.module cannot be imported on this worker: ModuleNotFoundError"),
        (f"{MODULE}:absent", f"module {MODULE} has no function absent"),
        (f"{MODULE}:nothing", "the function returned NoneType for"),
        (f"{MODULE}:halves", "the function returned high, low; the outputs are made"),
        (f"{MODULE}:broken", "cannot do ['numbers'] with {'times': 3}"),
    ],
)
async def test_the_error_names_what_is_wrong_with_a_function(
    system: OperatorSystem, function: str, message: str
) -> None:
    await system.deploy(dag(function))
    states = await system.run("d", "ask", start=1, end=2)
    assert states["work"] == ["Failed"]
    assert message in await system.error("work")


@pytest.mark.parametrize("function", ["no_colon", "a.b:c:d", "../x:y", "os:system('x')", ":f", "a:"])
async def test_the_function_name_is_checked_at_deploy_without_an_import(system: OperatorSystem, function: str) -> None:
    with pytest.raises(InvalidDag, match="named by its module"):
        await system.deploy(dag(function))
