"""Reads a plan of Spark: each of its nodes once, with the plans and expressions inside of its nodes.

Spark's own `toJSON` repeats what a node holds both as a child and as an option or a parameter: the ELSE of a CASE, what
`nvl` and `zeroifnull` are replaced by. Each such call inside of another doubles the text, so that 30 of them are more
than any memory holds. Here a node has a number, and is told once, whoever refers to it (`plan_nodes.java`). Java reads
the plan, since to ask for each node from here takes longer than most queries; Janino, which Spark brings along for the
code it makes, compiles that when the first plan is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from importlib.resources import files
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Node(msgspec.Struct, frozen=True):
    kind: str = msgspec.field(name="class")
    """The name of its class, with its package."""
    children: tuple[int, ...]
    fields: tuple[int, ...]
    """All that it holds, children too, also inside of options, sequences and tuples."""
    temporary: bool = False
    table: str | None = None
    """Of a view: its name, unless that has a database."""
    type: str | None = None
    """That a cast makes."""
    value: str | None = None
    """Of a literal, as text."""
    words: int = 1
    """Of the name of a relation that is not looked up yet."""


class Plan(tuple[Node, ...]):
    """The root first; a node refers to others by their place."""

    __slots__ = ()

    def below(self, start: int) -> Iterator[Node]:
        """The node's children, and theirs, each once."""
        seen, waiting = {start}, [start]
        while waiting:
            children = set(self[waiting.pop()].children) - seen
            seen |= children
            waiting += children
            yield from (self[child] for child in children)


def read_plan(spark: SparkSession, plan: Any) -> Plan:
    """`plan` is a logical plan of Java, parsed or analysed."""
    told: str = _reader(spark._jvm).apply(plan)  # noqa: SLF001 - there is no other way
    return Plan(msgspec.json.decode(told, type=Sequence[Node]))


@lru_cache(maxsize=1)
def _reader(jvm: Any) -> Any:
    """One for each Java process, of which there is one at a time.

    Threads that come first together compile one each. py4j remembers methods by the name of their class, and would
    call those of one on an object of the other: so each has another name.
    """
    name = f"PlanNodes{next(_numbers)}"
    source = files("tracelake.spark").joinpath("plan_nodes.java").read_text(encoding="utf-8")
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader())
    compiler.cook(source.replace("PlanNodes", name))
    return compiler.getClassLoader().loadClass(name).newInstance()


_numbers = count(1)
