"""Compares a dataset at two commits: schema, rows, keys, values and sums; on Spark, within the limits of queries.

Both sides are looked up on the user's behalf, as for a query, and the comparison is audited as one. Files that both
sides have are not read: two commits of a generation differ in what was committed between them.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID, uuid4

from tracelake.domain.ranges import InvalidRange, Range, inclusive
from tracelake.domain.sql.gate import check_sql
from tracelake.errors import BadInput, Incompatible, InvalidRequest, NotFound, Refused, SnapshotTooOld, TraceError
from tracelake.query.audit import Audit
from tracelake.query.checked_query import Caller, CheckedQuery, ColdFiles, Relation
from tracelake.query.diff.sides import sides_of
from tracelake.query.diff.statements import Comparison, is_comparable, is_number
from tracelake.query.encode import rows_of
from tracelake.query.engine import QueryEngine
from tracelake.query.prune_files import narrowed
from tracelake.query.resolve import Resolver
from tracelake.settings import QuerySettings
from tracelake.wire.client import DispatcherClient
from tracelake.wire.markers import NUMBER, ColumnEntry
from tracelake.wire.query_messages import AuditRow, RelationRequest, Verdict
from tracelake.wire.user_diff import ColumnDiff, DiffAnswer, DiffQuery, DiffRow, DiffSide, TypeChange

TABLES: Final = ("a", "b")


@dataclass(frozen=True)
class DatasetDiffer:
    dispatcher: DispatcherClient
    resolver: Resolver
    engine: QueryEngine
    audit: Audit
    settings: QuerySettings

    async def diff(self, user: str, dataset: str, query: DiffQuery) -> DiffAnswer:
        span = _span(query)
        detail = await self.dispatcher.dataset(user, dataset)
        name = detail.name
        if name is None:
            raise NotFound(
                f"{dataset!r} is not published, so nobody may read its rows",
                where="/dataset",
                hint="publish it in its DAG",
            )
        commits = sides_of(detail, query)
        places = zip(commits, ("query a", "query b"), strict=True)
        run = _Run(self, [await self._relation(user, name, commit, where) for commit, where in places])
        return await run.compare(name, query, span)

    async def _relation(self, user: str, name: str, commit: int, where: str) -> tuple[Caller, Relation]:
        try:
            answer, relations = await self.resolver.relations([RelationRequest(name=name, as_of=commit)], user=user)
        except (InvalidRequest, NotFound, SnapshotTooOld) as refusal:
            raise type(refusal)(refusal.message, where=where, hint="`trace datasets show` lists commits") from None
        relation = relations.get(name)
        if relation is None or answer.user_id is None:
            raise NotFound(f"there is no dataset {name!r} that you may read", where="/dataset")
        return Caller(answer.org_id, ("user", answer.user_id), user_id=answer.user_id), relation


@dataclass
class _Run:
    """One comparison; its queries share an audit row."""

    differ: DatasetDiffer
    found: Sequence[tuple[Caller, Relation]]
    id: UUID = field(default_factory=uuid4)
    texts: list[str] = field(default_factory=list)
    rows: int = 0

    async def compare(self, name: str, query: DiffQuery, span: Range | None) -> DiffAnswer:
        began, asked_at = time.perf_counter(), datetime.now(UTC)
        verdict: Verdict = "canceled"
        code = None
        try:
            answer = await self._compare(name, query, span)
            verdict = "answered"
        except TraceError as refusal:
            verdict, code = "refused" if isinstance(refusal, BadInput | Refused) else "failed", refusal.code
            raise
        finally:
            caller, relation = self.found[0]
            self.differ.audit.note(
                AuditRow(
                    id=self.id,
                    org_id=caller.org_id,
                    user_id=caller.user_id,
                    asked_at=asked_at,
                    sql_sha256=hashlib.sha256("\n".join(self.texts).encode()).hexdigest(),
                    datasets=[relation.dataset_uuid],
                    verdict=verdict,
                    code=code,
                    rows=self.rows,
                    milliseconds=round((time.perf_counter() - began) * 1000),
                )
            )
        return answer

    async def _compare(self, name: str, query: DiffQuery, span: Range | None) -> DiffAnswer:
        whole = [relation for _, relation in self.found]
        comparison = comparison_of(whole[0], whole[1], _key(query), span)
        shared = 0 if span else _shared_rows(*whole)
        relations = dict(zip(TABLES, whole if span else map(_without, whole, reversed(whole)), strict=True))
        await self._refuse_repeated_keys(comparison, relations)
        totals = [(await self._ask(comparison.totals(table), relations))[0] for table in TABLES]
        (counts,) = await self._ask(comparison.counts(), relations)
        differing = await self._ask(comparison.differing(query.rows), relations) if query.rows else []
        self.rows = len(differing)
        only_a, only_b, third = (int(value or 0) for value in counts[:3])
        both = int(totals[0][0]) - only_a
        return DiffAnswer(
            dataset=name,
            dataset_uuid=whole[0].dataset_uuid,
            a=_side(whole[0], totals[0][0] + shared),
            b=_side(whole[1], totals[1][0] + shared),
            schema=_changes(*whole),
            not_compared=[item.name for item in _common(*whole) if not is_comparable(item)],
            key=[item.name for item in comparison.columns[: comparison.keys]],
            shared_rows=shared,
            only_a=only_a,
            only_b=only_b,
            equal=shared + (both - third if comparison.keys else third),
            changed=third if comparison.keys else 0,
            columns=_columns(comparison, counts[3:], totals, both=both, shared=shared),
            differing=[_row(comparison, values) for values in differing],
        )

    async def _refuse_repeated_keys(self, comparison: Comparison, relations: Mapping[str, Relation]) -> None:
        for table in TABLES if comparison.keys else ():
            ((repeated,),) = await self._ask(comparison.keys_of(table), relations)
            if repeated:
                raise InvalidRequest(
                    f"{repeated} keys have more than one row at commit {relations[table].commit}",
                    where="query key",
                    hint="name all columns that identify a row, or none to compare whole rows",
                )

    async def _ask(self, text: str, relations: Mapping[str, Relation]) -> list[list[Any]]:
        self.texts.append(text)
        # It is our own text, and names of columns are quoted: the limits for queries from outside do not apply.
        checked = check_sql(text, relations, bounded=False)
        used = narrowed(checked, {name: relations[name] for name in checked.tables})
        settings = self.differ.settings
        result = await self.differ.engine.run(
            CheckedQuery(self.id, self.found[0][0], checked, used, settings.max_rows, settings.timeout_seconds)
        )
        return rows_of(result.table)


def _span(query: DiffQuery) -> Range | None:
    if (query.start is None) != (query.end is None):
        raise InvalidRequest("a range needs both its start and its end", where="query start")
    if query.start is None or query.end is None:
        return None
    try:
        return inclusive(query.start, query.end)
    except InvalidRange as wrong:
        raise InvalidRequest(wrong.message, where="query start", hint=wrong.hint) from None


def _key(query: DiffQuery) -> list[str]:
    names = [name.strip() for name in query.key.split(",")] if query.key else []
    return [name for name in dict.fromkeys(names) if name]


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


def comparison_of(a: Relation, b: Relation, key: Sequence[str], span: Range | None) -> Comparison:
    columns = {item.name: item for item in _common(a, b) if is_comparable(item)}
    if not columns:
        raise Incompatible(
            f"commits {a.commit} and {b.commit} have no column in common that can be compared",
            where="/dataset",
            hint="their schemas are in `trace datasets show`; compare others",
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
    return Comparison([*(columns[name] for name in key), *values], len(key), span)


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
    comparison: Comparison, equal: Sequence[Any], totals: Sequence[Sequence[Any]], *, both: int, shared: int
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


def _row(comparison: Comparison, values: Sequence[Any]) -> DiffRow:
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
