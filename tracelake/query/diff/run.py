"""The queries of one comparison, and the answer made of their results; on Spark, within the limits of queries.

Files that both sides have are not read: two commits of a generation differ in what was committed between them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple
from uuid import UUID, uuid4

from tracelake.domain.ranges import Range
from tracelake.domain.sql.gate import check_sql
from tracelake.errors import Incompatible, InvalidRequest
from tracelake.query.checked_query import Caller, CheckedQuery, ColdFiles, Relation
from tracelake.query.diff.statements import DiffStatements, is_comparable, is_number
from tracelake.query.encode import rows_of
from tracelake.query.engine import QueryEngine
from tracelake.query.prune_files import narrowed
from tracelake.settings import QuerySettings
from tracelake.wire.task.markers import NUMBER, ColumnEntry
from tracelake.wire.user.diff import ColumnDiff, DiffAnswer, DiffRow, DiffSide, TypeChange

TABLES: Final = ("a", "b")
SHOWN: Final = 5
"""Columns in a message."""


class Keys(NamedTuple):
    given: Sequence[str]
    """By the caller: refused if they do not identify a row."""
    known: Sequence[str]
    """Otherwise: the columns that the dataset is known by, as far as they do."""


@dataclass
class DiffRun:
    engine: QueryEngine
    settings: QuerySettings
    caller: Caller
    whole: tuple[Relation, Relation]
    id: UUID = field(default_factory=uuid4)
    texts: list[str] = field(default_factory=list)
    rows: int = 0
    steps: int = 0
    """Queries that were answered."""
    steps_planned: int = 0

    async def compare(self, name: str, keys: Keys, span: Range | None, rows: int) -> DiffAnswer:
        """With up to so many differing rows."""
        self.steps_planned = len(TABLES) * (2 if keys.given or keys.known else 1) + (2 if rows else 1)
        shared = 0 if span else _shared_rows(*self.whole)
        without = (_without(*self.whole), _without(*reversed(self.whole)))
        relations = dict(zip(TABLES, self.whole if span else without, strict=True))
        comparison, note = await self._choose(keys, span, relations)
        totals = [(await self._ask(comparison.totals(table), relations))[0] for table in TABLES]
        (counts,) = await self._ask(comparison.counts(), relations)
        differing = await self._ask(comparison.differing(rows), relations) if rows else []
        self.rows = len(differing)
        only_a, only_b, third = (int(value or 0) for value in counts[:3])
        both = int(totals[0][0]) - only_a
        a, b = self.whole
        return DiffAnswer(
            dataset=name,
            dataset_uuid=a.dataset_uuid,
            a=_side(a, totals[0][0] + shared),
            b=_side(b, totals[1][0] + shared),
            schema=_changes(a, b),
            not_compared=[item.name for item in _common(a, b) if not is_comparable(item)],
            key=[item.name for item in comparison.columns[: comparison.keys]],
            note=note,
            shared_rows=shared,
            only_a=only_a,
            only_b=only_b,
            equal=shared + (both - third if comparison.keys else third),
            changed=third if comparison.keys else 0,
            columns=_columns(comparison, counts[3:], totals, both=both, shared=shared),
            differing=[_row(comparison, values) for values in differing],
        )

    async def _choose(
        self, keys: Keys, span: Range | None, relations: Mapping[str, Relation]
    ) -> tuple[DiffStatements, str | None]:
        """By which columns; and why not by the known ones."""
        a, b = self.whole
        if keys.given:
            comparison = comparison_of(a, b, keys.given, span)
            await self._refuse_repeated_keys(comparison, relations)
            return comparison, None
        there = {item.name for item in _common(a, b) if is_comparable(item)}
        missing = [name for name in keys.known if name not in there]
        known = ", ".join(keys.known)
        if not keys.known or missing:
            reason = f"{missing[0]} of its key ({known}) is not in both with one type" if missing else None
        else:
            comparison = comparison_of(a, b, keys.known, span)
            repeated = [table for table in TABLES if await self._repeated(comparison, table, relations)]
            if not repeated:
                return comparison, None
            reason = f"its key ({known}) has several rows for some values"
        note = None if reason is None else f"{reason}, so whole rows were compared"
        return comparison_of(a, b, (), span), note

    async def _refuse_repeated_keys(self, comparison: DiffStatements, relations: Mapping[str, Relation]) -> None:
        for table in TABLES:
            repeated = await self._repeated(comparison, table, relations)
            if repeated:
                raise InvalidRequest(
                    f"{repeated} keys have more than one row at commit {relations[table].commit}",
                    where="query key",
                    hint="name all columns that identify a row, or none to compare whole rows",
                )

    async def _repeated(self, comparison: DiffStatements, table: str, relations: Mapping[str, Relation]) -> int:
        ((repeated,),) = await self._ask(comparison.keys_of(table), relations)
        return int(repeated)

    async def _ask(self, text: str, relations: Mapping[str, Relation]) -> list[list[Any]]:
        self.texts.append(text)
        # It is our own text, and names of columns are quoted: the limits for queries from outside do not apply.
        checked = check_sql(text, relations, bounded=False)
        used = narrowed(checked, {name: relations[name] for name in checked.tables})
        limits = self.settings.max_rows, self.settings.timeout_seconds
        result = await self.engine.run(CheckedQuery(self.id, self.caller, checked, used, *limits))
        self.steps += 1
        return rows_of(result.table)


def _common(a: Relation, b: Relation) -> list[ColumnEntry]:
    there = set(b.columns)
    return [item for item in a.columns if item in there]


def _changes(a: Relation, b: Relation) -> list[TypeChange]:
    left, right = ({item.name: item.type for item in side.columns} for side in (a, b))
    return [
        TypeChange(column=name, a=left.get(name), b=right.get(name))
        for name in dict.fromkeys([*left, *right])
        if left.get(name) != right.get(name)
    ]


def comparison_of(a: Relation, b: Relation, key: Sequence[str], span: Range | None) -> DiffStatements:
    columns = {item.name: item for item in _common(a, b) if is_comparable(item)}
    if not columns:
        raise Incompatible(
            f"commits {a.commit} ({_listed(a)}) and {b.commit} ({_listed(b)}) have no column in common that can be"
            " compared: a name with one type",
            where="/dataset",
            hint="compare other commits (`trace datasets show` lists them), or each by itself with `trace query`",
        )
    for name in key:
        if name not in columns:
            raise Incompatible(
                f"there is no column {name!r} that has one type in both, and values that can be compared",
                where="query key",
                hint=f"one of {', '.join(columns)}",
            )
    if span is not None and NUMBER not in columns:
        raise Incompatible(f"not both sides have a column {NUMBER}, by which a range is read", where="query start")
    values = [item for name, item in columns.items() if name not in key]
    return DiffStatements([*(columns[name] for name in key), *values], len(key), span)


def has_numbers(a: Relation, b: Relation) -> bool:
    """Whether both sides have a column by which a range is read."""
    return any(item.name == NUMBER for item in _common(a, b))


def _listed(side: Relation) -> str:
    names = [f"{item.name} {item.type}" for item in side.columns[:SHOWN]]
    return ", ".join(names) + (", ..." if len(side.columns) > SHOWN else "") if names else "without columns"


def _shared(a: ColdFiles, b: ColdFiles) -> set[Any]:
    """With cut files, of which only some rows count, none: they would be counted otherwise."""
    return set() if a.cut or b.cut else set(a.files) & set(b.files)


def _shared_rows(a: Relation, b: Relation) -> int:
    if a.cold is None or b.cold is None:
        return 0
    return sum(a.cold.facts[name].rows for name in _shared(a.cold, b.cold) if name in a.cold.facts)


def _without(relation: Relation, other: Relation) -> Relation:
    """Without the files that the other has too."""
    if relation.cold is None or other.cold is None:
        return relation
    cold, shared = relation.cold, _shared(relation.cold, other.cold)
    files = tuple(name for name in cold.files if name not in shared)
    facts = {name: cold.facts[name] for name in files if name in cold.facts}
    size, rows = sum(fact.bytes for fact in facts.values()), sum(fact.rows for fact in facts.values())
    return replace(relation, cold=replace(cold, files=files, facts=facts, bytes=size, rows=rows, narrowed=True))


def _side(relation: Relation, rows: int) -> DiffSide:
    return DiffSide(commit=relation.commit, dataset_version=relation.dataset_version, rows=rows)


def _columns(
    comparison: DiffStatements, equal: Sequence[Any], totals: Sequence[Sequence[Any]], *, both: int, shared: int
) -> list[ColumnDiff]:
    """`equal`: by column, with a key; `totals`: rows and then the sums of the columns of numbers."""
    numbers = [n for n, item in enumerate(comparison.columns) if is_number(item)]
    sums = [dict(zip(numbers, side[1:], strict=True)) for side in totals]
    found = []
    for n, item in enumerate(comparison.columns):
        count = int(equal[n]) + shared if comparison.keys else None
        share = count / (both + shared) if count is not None and both + shared else None
        sum_a, sum_b = (_number(side.get(n)) for side in sums)
        found.append(ColumnDiff(column=item.name, equal=count, share=share, sum_a=sum_a, sum_b=sum_b))
    return found


def _number(value: Any) -> float | None:
    """None: no number, or none that JSON can hold."""
    return value if isinstance(value, float) else None


def _row(comparison: DiffStatements, values: Sequence[Any]) -> DiffRow:
    in_a, in_b, *rest = values
    width = len(comparison.columns)
    if not comparison.keys:
        more_in_a = in_a > in_b
        return DiffRow(
            kind="only_a" if more_in_a else "only_b", a=rest if more_in_a else None, b=None if more_in_a else rest
        )
    if in_a is None:
        return DiffRow(kind="only_b", a=None, b=rest[width:])
    if in_b is None:
        return DiffRow(kind="only_a", a=rest[:width], b=None)
    return DiffRow(kind="changed", a=rest[:width], b=rest[width:])
