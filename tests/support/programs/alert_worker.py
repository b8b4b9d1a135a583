"""A worker that routes alerts and dies at a named point: the operator as it is, on rows that are given, without Spark.

A program: one JSON object on a line of standard input.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

from pyspark.sql import Row

from tracelake.domain.alerts import COLUMNS
from tracelake.operators.alert_route import Config, run
from tracelake.operators.api.context import Resources, TaskContext
from tracelake.runtime.crash_points import arm
from tracelake.wire.task.lifecycle import AlertRef, JobRef, TaskPayload


@dataclass(frozen=True)
class Rows:
    """In the place of a DataFrame."""

    given: list[dict[str, Any]]

    @property
    def columns(self) -> list[str]:
        return list(COLUMNS)

    def selectExpr(self, *_: str) -> Rows:  # noqa: N802 - Spark's name
        return self

    def toLocalIterator(self) -> Iterator[Row]:  # noqa: N802 - Spark's name
        return (Row(**{**dict.fromkeys(COLUMNS), **row}) for row in self.given)


def main() -> None:
    asked = json.loads(sys.stdin.readline())
    arm(asked["point"], 1, "kill")
    alert = AlertRef(alert_definition_id=UUID(asked["alert"]), name="whales", severity="info", channels=["ops", "page"])
    task = TaskPayload(
        task_id=UUID(int=1),
        attempt=1,
        job=JobRef(dag_name="watch", name="route"),
        operator="alert_route",
        config={},
        inputs=[],
        alerts=[alert],
    )
    context = TaskContext(
        task, UUID(asked["org"]), Config(), None, cast("Any", None), cast("Any", None), Resources(asked["data"])
    )
    # What the context would make of its inputs.
    rows = SimpleNamespace(name="alert_events", dataframe=lambda: Rows(asked["rows"]))
    context.__dict__["inputs"] = [rows]
    run(context)


if __name__ == "__main__":
    main()
