"""`sql`: a SELECT over pinned inputs becomes partitions; what it may read and say is settled at deploy."""

from __future__ import annotations

from typing import Any

import pytest

from tests.operators.rig import Numbers, Rig
from tests.walk.walking import working
from trace_platform.dispatcher.invalidate import invalidate
from trace_platform.dispatcher.show_dataset import show_dataset
from trace_platform.errors import InvalidDag
from trace_platform.store.identity import User

pytestmark = pytest.mark.anyio


def dag(query: str, more: str = "", inputs: str = "[{from: {job: numbers}}]") -> str:
    lines = query.replace("\n", "\n        ")
    return f"""
name: d
defaults: {{runtime: ecs_platform, max_attempts: 1}}
jobs:
  - {{name: ask, operator: noop, runtime: dispatcher, source: {{kind: manual}}}}
  - {{name: numbers, operator: numbers, inputs: [{{from: {{job: ask}}}}]}}
  - name: made
    operator: sql
    config:
      query: |
        {lines}
      {more}
    inputs: {inputs}
publish:
  numbers: {{job: numbers}}
  made: {{job: made}}
"""


async def test_the_rows_of_a_range_become_the_partition_of_that_range(rig: Rig, numbers: Numbers) -> None:
    await rig.deploy(dag("SELECT block_number, value + 1 AS more FROM numbers WHERE value >= 20"))
    states = await rig.run("d", "ask", start=0, end=4)
    assert states["made"] == ["Completed"], await rig.error("made")
    assert await rig.rows("made") == [{"block_number": number, "more": number * 10 + 1} for number in (2, 3, 4)]
    (partition,) = await rig.partitions("made")
    assert partition["partition_key"] == "0-4"
    await rig.run("d", "ask", start=5, end=6)
    assert [row["block_number"] for row in await rig.rows("made")] == [2, 3, 4, 5, 6]
