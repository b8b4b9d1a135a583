"""Compares a dataset at two commits for a user: what is compared, on whose behalf, and the audit of it.

Both sides are looked up on the user's behalf, as for a query, and the comparison is audited as one.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from tracelake.domain.ranges import InvalidRange, Range, inclusive
from tracelake.errors import BadInput, Conflict, InvalidRequest, NotFound, Refused, SnapshotTooOld, TraceError
from tracelake.query.audit import Audit
from tracelake.query.checked_query import Caller, Relation
from tracelake.query.diff.run import DiffRun, Keys
from tracelake.query.diff.sides import sides_of
from tracelake.query.engine import QueryEngine
from tracelake.query.resolve import Resolver
from tracelake.settings import QuerySettings
from tracelake.wire.client import DispatcherClient
from tracelake.wire.internal.queries import AuditRow, RelationRequest, Verdict
from tracelake.wire.service.headers import ServiceUser
from tracelake.wire.user.datasets import DatasetDetail
from tracelake.wire.user.diff import DiffAnswer, DiffQuery
from tracelake.wire.user.releases import ReleaseComparison


@dataclass(frozen=True)
class DatasetDiffer:
    dispatcher: DispatcherClient
    resolver: Resolver
    engine: QueryEngine
    audit: Audit
    settings: QuerySettings

    async def diff(self, user: ServiceUser, dataset: str, query: DiffQuery) -> DiffAnswer:
        span = _span(query)
        detail = await self.dispatcher.dataset(user, dataset)
        name = detail.name
        if name is None:
            raise NotFound(
                f"{dataset!r} is not published, so nobody may read its rows",
                where="/dataset",
                hint="publish it in its DAG",
            )
        built = None if query.release is None else await self._built(user, query, detail)
        commits = sides_of(detail, query, built)
        places = zip(commits, ("query a", "query b"), strict=True)
        found = [await self._relation(user, name, commit, where) for commit, where in places]
        a, b = (relation for _, relation in found)
        _refuse_outside(detail, (a, b), span)
        run = DiffRun(self.engine, self.settings, found[0][0], (a, b))
        keys = Keys(_key(query), detail.unique_key)
        return await self._audited(run, name, keys, span, query.rows)

    async def _built(self, user: ServiceUser, query: DiffQuery, detail: DatasetDetail) -> ReleaseComparison:
        """The two generations of a release."""
        if query.a is not None or query.b is not None:
            raise InvalidRequest("a release has its own two sides", where="query release", hint="leave out a and b")
        if query.release is None:
            raise TypeError(query)
        found = await self.dispatcher.release(user, query.release)
        if found.release.state in {"Abandoned", "Retired"}:
            raise Conflict(
                f"release {query.release} is {found.release.state}: what it has built is removed, or will be",
                where="query release",
                hint="`trace datasets show` lists the generations that are there",
            )
        for item in found.comparisons:
            if item.dataset_uuid == detail.dataset_uuid:
                return item
        others = ", ".join(item.dataset for item in found.comparisons) or "none"
        raise NotFound(
            f"release {query.release} makes no new generation of {detail.name}",
            where="query release",
            hint=f"of these, which were there before: {others}",
        )

    async def _relation(self, user: ServiceUser, name: str, commit: int, where: str) -> tuple[Caller, Relation]:
        try:
            answer, relations = await self.resolver.relations([RelationRequest(name=name, as_of=commit)], user=user)
        except (InvalidRequest, NotFound, SnapshotTooOld) as refusal:
            raise type(refusal)(refusal.message, where=where, hint="`trace datasets show` lists commits") from None
        relation = relations.get(name)
        if relation is None or answer.user_id is None:
            raise NotFound(f"there is no dataset {name!r} that you may read", where="/dataset")
        caller = Caller(answer.org_id, ("user", answer.user_id), answer.user_id, limits=answer.limits)
        return caller, relation

    async def _audited(self, run: DiffRun, name: str, keys: Keys, span: Range | None, rows: int) -> DiffAnswer:
        began, asked_at = time.perf_counter(), datetime.now(UTC)
        verdict: Verdict = "canceled"
        code = None
        try:
            answer = await run.compare(name, keys, span, rows)
            verdict = "answered"
        except TraceError as refusal:
            verdict, code = "refused" if isinstance(refusal, BadInput | Refused) else "failed", refusal.code
            raise
        finally:
            self.audit.note(
                AuditRow(
                    id=run.id,
                    org_id=run.caller.org_id,
                    user_id=run.caller.user_id,
                    asked_at=asked_at,
                    sql_sha256=hashlib.sha256("\n".join(run.texts).encode()).hexdigest(),
                    datasets=[run.whole[0].dataset_uuid],
                    verdict=verdict,
                    code=code,
                    rows=run.rows,
                    milliseconds=round((time.perf_counter() - began) * 1000),
                )
            )
        return answer


def _span(query: DiffQuery) -> Range | None:
    if (query.start is None) != (query.end is None):
        raise InvalidRequest("a range needs both its start and its end", where="query start")
    if query.start is None or query.end is None:
        return None
    try:
        return inclusive(query.start, query.end)
    except InvalidRange as wrong:
        raise InvalidRequest(wrong.message, where="query start", hint=wrong.hint) from None


def _refuse_outside(detail: DatasetDetail, sides: tuple[Relation, Relation], span: Range | None) -> None:
    """A range in which neither side has blocks: all would be equal, because there is nothing."""
    if span is None:
        return
    versions: set[UUID] = {side.dataset_version for side in sides}
    blocks = [edges for item in detail.generations if item.dataset_version in versions for edges in item.ranges]
    start, end = span.edges
    if blocks and not any(first <= end and start <= last for first, last in blocks):
        first, last = min(edges[0] for edges in blocks), max(edges[1] for edges in blocks)
        raise InvalidRequest(
            f"neither side has blocks {start}-{end}", where="query start", hint=f"its blocks are within {first}-{last}"
        )


def _key(query: DiffQuery) -> list[str]:
    names = [name.strip() for name in query.key.split(",")] if query.key else []
    return [name for name in dict.fromkeys(names) if name]
