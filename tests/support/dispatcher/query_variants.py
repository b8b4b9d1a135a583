"""Two DAGs of `sql` jobs in several variants, each query with its meaning in Python, over rows that can be forked."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tracelake.domain.ranges import Range
from tracelake.operators.api.context import TaskContext

Row = Mapping[str, Any]
Meaning = Callable[[Row], Row | None]
"""What a query makes of a row of its input; None: it leaves the row out."""
ROWS = pa.schema([("block_number", pa.int64()), ("item", pa.int64()), ("value", pa.int64())])


@dataclass
class ForkedNumbers:
    """An operator that writes the rows of numbers: none to two for each, other ones after every fork."""

    forks: Counter[int] = field(default_factory=Counter)

    def rows(self, numbers: Sequence[int]) -> list[Row]:
        return [
            {"block_number": n, "item": item, "value": (37 * n + 53 * self.forks[n] + 11 * item) % 101}
            for n in numbers
            for item in range((n + self.forks[n]) % 3)
        ]

    def fork(self, span: Range, dice: random.Random) -> None:
        """One number of the range at least has other rows from now on."""
        numbers = range(span.start, span.stop)
        for number in dice.sample(numbers, dice.randint(1, len(numbers))):
            self.forks[number] += 1

    def __call__(self, ctx: TaskContext[Any]) -> None:
        for output in ctx.outputs:
            for part in ctx.parts(output):
                assert isinstance(part, Range)
                rows = self.rows(range(part.start, part.stop))
                output.write_table(pa.Table.from_pylist(rows, ROWS), part)


def _made(above: int, times: int = 1, name: str = "amount") -> Meaning:
    def meaning(row: Row) -> Row | None:
        kept = {"block_number": row["block_number"], "item": row["item"]}
        return {**kept, name: row["value"] * times} if row["value"] > above else None

    return meaning


def _kept(row: Row) -> Row | None:
    return {"block_number": row["block_number"], "item": row["item"]} if row["item"] > 0 else None


MADE = {
    "SELECT block_number, item, value AS amount FROM numbers WHERE value > 20": _made(20),
    "select  block_number, item, value AS amount from numbers  where value > 20": _made(20),
    "SELECT block_number, item, value AS amount FROM numbers WHERE value > 60": _made(60),
    "SELECT block_number, item, value * 3 AS amount FROM numbers WHERE value > 20": _made(20, 3),
    "SELECT block_number, item, value AS total FROM numbers WHERE value > 20": _made(20, name="total"),
}
"""Variants: the first two mean the same; then another filter, another column, and a column of another name."""
KEPT = {"SELECT block_number, item FROM made WHERE item > 0": _kept}
SOLD: dict[str, Meaning] = {
    "SELECT * FROM made WHERE item = 0": lambda row: row if row["item"] == 0 else None,
    "SELECT *, item + 7 AS label FROM made": lambda row: {**row, "label": row["item"] + 7},
}
TWICE: dict[str, Meaning] = {
    "SELECT block_number * 2 AS twice, item FROM sold": lambda row: {
        "twice": row["block_number"] * 2,
        "item": row["item"],
    },
}
MEANINGS: Mapping[str, Meaning] = {**MADE, **KEPT, **SOLD, **TWICE}
INPUTS = {"made": "numbers", "kept": "made", "sold": "made", "twice": "sold"}
"""The input of each `sql` job. The last two are jobs of the DAG `shop`."""
MILL = """
name: mill
defaults: {{runtime: ecs_platform, max_attempts: 100, retry: {{backoff: 1s, max_backoff: 1s}}}}
jobs:
  - {{name: ask, operator: noop, runtime: dispatcher, source: {{kind: manual}}}}
  - {{name: numbers, operator: numbers, inputs: [{{from: {{job: ask}}}}]}}
  - {{name: made, operator: sql, config: {{query: "{made}"}}, inputs: [{{from: {{job: numbers}}}}]}}
  - {{name: kept, operator: sql, config: {{query: "{kept}"}}, inputs: [{{from: {{job: made}}}}]}}
publish:
  numbers: {{job: numbers}}
  made: {{job: made}}
  kept: {{job: kept}}
"""
SHOP = """
name: shop
defaults: {{runtime: ecs_platform, max_attempts: 100, retry: {{backoff: 1s, max_backoff: 1s}}}}
jobs:
  - {{name: sold, operator: sql, config: {{query: "{sold}"}}, inputs: [{{from: {{dataset: made}}}}]}}
  - {{name: twice, operator: sql, config: {{query: "{twice}"}}, inputs: [{{from: {{job: sold}}}}]}}
publish:
  sold: {{job: sold}}
  twice: {{job: twice}}
"""
MILLS = [MILL.format(made=made, kept=kept) for made in MADE for kept in KEPT]
SHOPS = [SHOP.format(sold=sold, twice=twice) for sold in SOLD for twice in TWICE]


def built_from_scratch(
    source: ForkedNumbers, spans: Sequence[Range], queries: Mapping[str, str]
) -> dict[str, dict[Range, list[Row]]]:
    """The rows of each dataset in each range, by the meaning of these queries of the jobs; in no particular order."""
    found = {"numbers": {span: source.rows(range(span.start, span.stop)) for span in spans}}
    for job, given in INPUTS.items():
        meaning = MEANINGS[queries[job]]
        found[job] = {
            span: [made for row in rows if (made := meaning(row)) is not None] for span, rows in found[given].items()
        }
    return found
