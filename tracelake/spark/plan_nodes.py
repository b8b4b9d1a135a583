"""Reads a plan of Spark: each node once, with the plans and expressions inside its nodes.

Spark's `toJSON` repeats what a node holds both as a child and as an option or parameter: the ELSE of a CASE, the
replacement of `nvl` and `zeroifnull`. Each nested call doubles the text, so that 30 of them exceed any memory. Here a
node has a number and is written once, however often others refer to it (`plan_nodes.java`). Java reads the plan, since
a call from Python for each node takes longer than most queries; Janino, which is part of Spark, compiles the reader
when the first plan is read.
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


class PlanNode(msgspec.Struct, frozen=True):
    kind: str = msgspec.field(name="class")
    """The name of its class, with the package."""
    children: tuple[int, ...]
    fields: tuple[int, ...]
    """All nodes that it holds, including children and those in options, sequences and tuples."""
    temporary: bool = False
    table: str | None = None
    """Of a view: its name, unless it has a database."""
    type: str | None = None
    """The type that a cast converts to."""
    value: str | None = None
    """The value of a literal, as text."""
    words: int = 1
    """How many parts the name of an unresolved relation has."""


class SparkPlan(tuple[PlanNode, ...]):
    """The root comes first; a node refers to others by their index."""

    __slots__ = ()

    def below(self, start: int) -> Iterator[PlanNode]:
        """Return the node's children, and theirs, each once."""
        seen, waiting = {start}, [start]
        while waiting:
            children = set(self[waiting.pop()].children) - seen
            seen |= children
            waiting += children
            yield from (self[child] for child in children)


def read_plan(spark: SparkSession, plan: Any) -> SparkPlan:
    """`plan` is a logical plan object of Java, parsed or analysed."""
    nodes: str = _reader(spark._jvm).apply(plan)  # noqa: SLF001 - there is no other way
    return SparkPlan(msgspec.json.decode(nodes, type=Sequence[PlanNode]))


@lru_cache(maxsize=1)
def _reader(jvm: Any) -> Any:
    """Compile the reader, once per JVM, of which there is one at a time.

    Threads that come first together compile one each. py4j caches methods by class name, and would call those of one
    class on an object of the other: so each class gets another name.
    """
    name = f"PlanNodes{next(_numbers)}"
    source = files("tracelake.spark").joinpath("plan_nodes.java").read_text(encoding="utf-8")
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader())
    compiler.cook(source.replace("PlanNodes", name))
    return compiler.getClassLoader().loadClass(name).newInstance()


_numbers = count(1)
