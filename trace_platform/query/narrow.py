"""Leaves out files that a query cannot need: its conditions on the block number, against what each file says it holds.

Spark plans with what is left. It would find out the same by opening every file, which for a thousand of them takes
longer than the query. What a file does not say is not guessed: it is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import chain
from typing import Final

from trace_platform.domain.objects import ObjectName
from trace_platform.domain.ranges import Range
from trace_platform.domain.sql_gate import CheckedSql
from trace_platform.domain.sql_numbers import Spans, needed_numbers, overlap
from trace_platform.markers import NUMBER
from trace_platform.query.question import ColdFiles, Relation

WHOLE_NUMBERS: Final = frozenset({"bigint", "int"})


def narrowed(checked: CheckedSql, relations: Mapping[str, Relation]) -> dict[str, Relation]:
    having = [name for name, relation in relations.items() if _has_number(relation.cold)]
    needed = needed_numbers(checked, NUMBER, having) if having else {}
    return {
        name: replace(relation, cold=narrowed_files(relation.cold, needed[name]))
        if relation.cold is not None and name in needed
        else relation
        for name, relation in relations.items()
    }


def narrowed_files(cold: ColdFiles, needed: Spans) -> ColdFiles:
    """At least one file stays: a table without files is made in another way, which takes longer."""
    files = _needed(cold.files, cold, needed)
    cut = {spans: left for spans, names in cold.cut.items() if (left := _needed(names, cold, needed))}
    if not files and not cut:
        files, cut = cold.files[:1], {} if cold.files else dict(cold.cut)
    kept = _all(files, cut)
    if len(kept) == len(_all(cold.files, cold.cut)):
        return cold
    facts = {name: cold.facts[name] for name in kept if name in cold.facts}
    size, rows = sum(fact.bytes for fact in facts.values()), sum(fact.rows for fact in facts.values())
    return replace(cold, files=files, cut=cut, facts=facts, bytes=size, rows=rows, narrowed=True)


def _needed(names: Iterable[ObjectName], cold: ColdFiles, needed: Spans) -> tuple[ObjectName, ...]:
    def is_needed(name: ObjectName) -> bool:
        fact = cold.facts.get(name)
        return fact is None or fact.numbers is None or overlap(needed, *fact.numbers)

    return tuple(name for name in names if is_needed(name))


def _all(files: Iterable[ObjectName], cut: Mapping[tuple[Range, ...], tuple[ObjectName, ...]]) -> list[ObjectName]:
    return [*files, *chain.from_iterable(cut.values())]


def _has_number(cold: ColdFiles | None) -> bool:
    columns = cold.columns or () if cold is not None else ()
    return any(column.name.casefold() == NUMBER and column.type in WHOLE_NUMBERS for column in columns)
