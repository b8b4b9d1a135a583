"""A task whose rows are held in Python workers of Spark until the test lets them go."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from tests.support.spark.cluster import HOLD, LOAD, holding
from tests.support.systems.operators import OperatorSystem
from tests.support.systems.walk import Walk
from tests.support.waiting import until
from tracelake.operators.api.context import Resources

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS: Final = 40
ENDED: Final = """
SELECT count(*) = $1 FROM tasks t JOIN jobs j ON j.id = t.job_id
 WHERE j.name = 'held' AND t.status IN ('Completed', 'Failed')
"""
TASKS: Final = """
SELECT t.status::text, t.attempt, t.error_message FROM tasks t JOIN jobs j ON j.id = t.job_id
 WHERE j.name = 'held' ORDER BY t.id
"""
COMPLETED: Final = {"status": "Completed", "attempt": 1, "error_message": None}


async def with_numbers(walk: Walk, folder: Path) -> OperatorSystem:
    """Both DAGs are deployed; the numbers are made when `load` is triggered."""
    for item in (folder / "files" / "in", folder / "marks"):
        item.mkdir(parents=True)
    (folder / "files" / "in" / "a.csv").write_text("id\n" + "".join(f"{item}\n" for item in range(ROWS)))
    system = OperatorSystem(walk, cast("SparkSession", None), Resources(), folder)  # Spark is elsewhere
    await system.deploy(LOAD)
    await system.deploy(HOLD.replace("FOLDER", str(folder / "marks")).replace("mode: full}", "mode: full, files: 2}"))
    return system


async def until_held_below(system: OperatorSystem, pids: list[int]) -> None:
    def held() -> bool:
        return len(holding(system.folder / "marks", pids)) == len(pids)

    await until(held, f"partitions are held below each of {pids}", every=0.1)


def let_go(system: OperatorSystem) -> None:
    (system.folder / "marks" / "go").touch()


async def every_row_once(system: OperatorSystem, tasks: list[dict[str, Any]]) -> None:
    """And the tasks that held them have ended like this."""
    assert [dict(task) for task in await system.fetch(TASKS)] == tasks
    rows: list[dict[str, Any]] = await system.rows("held")
    assert [row["ten"] for row in rows] == [10 * number for number in range(ROWS)]
