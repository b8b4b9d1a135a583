"""Which type a name has in a query: columns of its tables and subqueries, and names that it gives to expressions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sqlglot import exp

from tracelake.domain.sql.clock import is_clock_column
from tracelake.query.sail.translate.types import NotOnSail

TypedColumns = Sequence[tuple[str, str]]
"""Names and types. A column that the query does not name has no name."""
CLOCKS: Final = {"current_date": "date", "current_timestamp": "timestamp"}


@dataclass
class Budget:
    """Limits the size of a query for Sail: parts that occur twice, one within the other, would grow without end."""

    left: int = 50_000

    def spend(self, node: Any) -> None:
        self.left -= 1 if node is None or isinstance(node, exp.Column | exp.Literal) else sum(1 for _ in node.walk())
        if self.left < 0:
            raise NotOnSail("syntax", "size")


@dataclass
class QueryScope:
    """What names mean in one SELECT."""

    ctes: Mapping[str, TypedColumns]
    outer: QueryScope | None = None
    budget: Budget = field(default_factory=Budget)
    sources: list[tuple[str, TypedColumns]] = field(default_factory=list)
    hidden: list[tuple[str, TypedColumns]] = field(default_factory=list)
    """The right sides of semi joins, which only their conditions read."""
    using: set[str] = field(default_factory=set)
    aliases: dict[str, tuple[Any, str]] = field(default_factory=dict)
    """The expressions that the SELECT has named so far."""
    after: bool = False
    """Whether what is read now comes after the outputs, and may use their names: GROUP BY, HAVING, ORDER BY."""
    inline: bool = True
    """Whether the name of an output is replaced by its expression, since Sail would not know it here."""

    def read(self, column: exp.Column) -> tuple[Any, str]:
        """Return a column and its type. One that an output before it has named becomes that output's expression."""
        *qualifier, name = (part.name.casefold() for part in column.parts)
        if len(qualifier) > 1:
            raise NotOnSail("names", column.name)
        found = self._found(qualifier, name)
        alias = self.aliases.get(name) if not qualifier else None
        if found and (alias is None or not self.after):
            return column, found[0]
        if found:
            raise NotOnSail("names", name)  # the column, or the output of that name
        if alias is not None:
            return self._use(column, *alias)
        if self.outer is not None:
            return self.outer.read(column)
        if not qualifier and is_clock_column(column) and name in CLOCKS:
            return column, CLOCKS[name]
        raise NotOnSail("names", name)

    def all_columns(self, qualifier: str) -> list[tuple[str, str, str]]:
        """Return the source, name and type of each column of a star."""
        if self.using:
            raise NotOnSail("names", "star")
        sources = [source for source in self.sources if qualifier in {"", source[0]}]
        columns = [(source, name, type_) for source, given in sources for name, type_ in given]
        if not columns or any(not name for _, name, _ in columns):
            raise NotOnSail("names", "star")
        return columns

    def _found(self, qualifier: list[str], name: str) -> list[str]:
        sources: Iterable[tuple[str, TypedColumns]] = [*self.sources, *self.hidden]
        types = [
            type_
            for source, columns in sources
            if not qualifier or qualifier == [source]
            for column, type_ in columns
            if column.casefold() == name
        ]
        if len(set(types)) > 1 or (len(types) > 1 and name not in self.using):
            raise NotOnSail("names", name)
        return types

    def _use(self, column: exp.Column, value: Any, type_: str) -> tuple[Any, str]:
        if not self.inline:
            return column, type_
        if value.find(exp.Query) or (value.find(exp.Window) and column.find_ancestor(exp.Window)):
            raise NotOnSail("names", column.name)
        return exp.Paren(this=value.copy()), type_
