"""Prunes files that a query cannot need, by its conditions on the block number and the DAG's filters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import chain

from tracelake.data.files.needed import Numbers, has_number, needed_of
from tracelake.domain.access.object_names import ObjectName
from tracelake.domain.filter.tree import AnyOf
from tracelake.domain.ranges import Range
from tracelake.domain.sql.gate import CheckedSql
from tracelake.domain.sql.number_spans import ALL, Spans, passing, shared
from tracelake.domain.sql.numbers import needed_numbers
from tracelake.query.checked_query import ColdFiles, Relation
from tracelake.wire.task.markers import NUMBER


def narrowed(checked: CheckedSql, relations: Mapping[str, Relation]) -> dict[str, Relation]:
    cold_files = {name: relation.cold for name, relation in relations.items()}
    having = {name: cold for name, cold in cold_files.items() if cold and has_number(cold.columns or ())}
    needed = needed_numbers(checked, NUMBER, having) if having else {}

    def narrow(name: str, relation: Relation) -> Relation:
        spans = shared([needed.get(name, ALL), _granted(relation)])
        cold = having.get(name)
        return relation if cold is None or spans == ALL else replace(relation, cold=narrowed_files(cold, spans))

    return {name: narrow(name, relation) for name, relation in relations.items()}


def _granted(relation: Relation) -> Spans:
    return passing(AnyOf(relation.filters), NUMBER) if relation.filters else ALL


def narrowed_files(cold: ColdFiles, needed: Spans) -> ColdFiles:
    """At least one file stays: Spark plans a table without files differently, which takes longer."""

    def numbers(name: ObjectName) -> Numbers | None:
        fact = cold.facts.get(name)
        return fact.numbers if fact else None

    files = needed_of(cold.files, numbers, needed)
    cut = {spans: left for spans, names in cold.cut.items() if (left := needed_of(names, numbers, needed))}
    if not files and not cut:
        files, cut = cold.files[:1], {} if cold.files else dict(cold.cut)
    kept = _all(files, cut)
    if len(kept) == len(_all(cold.files, cold.cut)):
        return cold
    facts = {name: cold.facts[name] for name in kept if name in cold.facts}
    size, rows = sum(fact.bytes for fact in facts.values()), sum(fact.rows for fact in facts.values())
    return replace(cold, files=files, cut=cut, facts=facts, bytes=size, rows=rows, narrowed=True)


def _all(files: Iterable[ObjectName], cut: Mapping[tuple[Range, ...], tuple[ObjectName, ...]]) -> list[ObjectName]:
    return [*files, *chain.from_iterable(cut.values())]
