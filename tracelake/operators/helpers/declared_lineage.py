"""Column lineage that a DAG declares, for operators whose code does not show it.

`lineage: {fee: [orders.amount, rates.*]}`: column `fee` is made from these columns of inputs; with several outputs, the
key is `output.column`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tracelake.domain.dag.catalog import ColumnSource, ConfigProblem, Wired
from tracelake.domain.text.suggest import nearest

Lineage = Mapping[str, Sequence[str]]
EVERY = "*"


def declared_lineage(config: Mapping[str, Any], wired: Wired) -> list[ColumnSource]:
    """Called only with a config that passed `check_lineage`."""
    lineage: Lineage = config.get("lineage") or {}
    found = []
    for key, places in lineage.items():
        output, column = _target(key, wired)
        for place in places:
            name, _, made_from = place.partition(".")
            found.append(ColumnSource(column, name, made_from, wired.outputs.index(output)))
    return sorted(set(found))


def check_lineage(config: Mapping[str, Any], wired: Wired) -> list[ConfigProblem]:
    lineage: Lineage = config.get("lineage") or {}
    return [problem for key, places in lineage.items() for problem in _problems(key, places, wired)]


def _problems(key: str, places: Sequence[str], wired: Wired) -> Iterator[ConfigProblem]:
    output, column = _target(key, wired)
    if output not in wired.outputs or not column:
        form = "output.column" if len(wired.outputs) > 1 else "column"
        yield ConfigProblem(("lineage", key), f"this is not {form} of the job", _outputs(wired), "unknown_output")
    for number, place in enumerate(places):
        path = ("lineage", key, number)
        name, _, made_from = place.partition(".")
        if name not in wired.inputs:
            hint = nearest(name, wired.inputs) or f"one of {', '.join(wired.inputs) or 'none: it has no inputs'}"
            yield ConfigProblem(path, f"the job has no input {name!r}", hint, "unknown_input")
        elif not made_from:
            yield ConfigProblem(path, "a column is named input.column", f"{name}.{EVERY} for any of them")
        elif not _has(wired, name, made_from):
            yield ConfigProblem(path, f"input {name} has no column {made_from!r}", code="unknown_column")


def _has(wired: Wired, name: str, column: str) -> bool:
    columns = dict(zip(wired.inputs, wired.columns, strict=False)).get(name)
    return columns is None or column == EVERY or column in columns


def _target(key: str, wired: Wired) -> tuple[str, str]:
    """Output and column."""
    if len(wired.outputs) == 1:
        return wired.outputs[0], key
    output, _, column = key.partition(".")
    return output, column


def _outputs(wired: Wired) -> str:
    return f"outputs: {', '.join(wired.outputs)}"
