"""Answers one query: looks up its names, checks its SQL, runs it and audits it. The same for users and tasks.

Names are looked up on the caller's behalf. A dataset that the caller may not read is refused like one that does not
exist.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, TypeVar
from uuid import UUID, uuid4

from tracelake.capability.claims import Claims
from tracelake.domain.access.grants import View
from tracelake.domain.access.object_names import Folder
from tracelake.domain.access.storage_locations import SCRATCH
from tracelake.domain.sql.gate import CheckedSql, check_sql, table_names
from tracelake.errors import (
    BadInput,
    Forbidden,
    InvalidRequest,
    InvalidSql,
    Refused,
    SnapshotMoved,
    SnapshotTooOld,
    TraceError,
)
from tracelake.query.audit import Audit
from tracelake.query.checked_query import Caller, CheckedQuery, Relation
from tracelake.query.engine import QueryEngine, QueryResult
from tracelake.query.limits.while_permitted import while_permitted
from tracelake.query.prune_files import narrowed
from tracelake.query.resolve import Resolver
from tracelake.runtime.logs import add_log_fields
from tracelake.runtime.metrics import Metrics
from tracelake.runtime.tracing import set_attributes
from tracelake.settings import QuerySettings
from tracelake.wire.internal.queries import (
    MAX_TABLES,
    AuditRow,
    QueryAnswer,
    QueryRequest,
    ReadDataset,
    RelationRequest,
    TaskQueryRequest,
    Verdict,
)
from tracelake.wire.service.headers import ServiceUser

if TYPE_CHECKING:
    import pyarrow as pa

NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,127}")
TRIES: Final = 3
"""A hot table may be swept between the look-up and the read: then both are repeated."""
LONG: Final = 4_000
"""Longer texts are checked in a thread, not in the event loop."""

UNKNOWN_ORG: Final = "unknown"
"""The label of a query that was refused before its caller was known."""

Request = QueryRequest | TaskQueryRequest
T = TypeVar("T")


@dataclass
class _Case:
    """The state of one query, from the request to its audit row."""

    request: Request
    id: UUID = field(default_factory=uuid4)
    asked_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    began: float = field(default_factory=time.perf_counter)
    caller: Caller | None = None
    relations: Mapping[str, Relation] = field(default_factory=dict)
    readable: Sequence[str] = ()
    result: QueryResult | None = None

    @property
    def milliseconds(self) -> int:
        return round((time.perf_counter() - self.began) * 1000)


@dataclass(frozen=True)
class QueryAnswerer:
    resolver: Resolver
    engine: QueryEngine
    audit: Audit
    settings: QuerySettings
    metrics: Metrics = field(default_factory=Metrics)

    async def for_user(self, user: ServiceUser, request: QueryRequest) -> tuple[QueryAnswer, pa.Table | None]:
        async def look_up(case: _Case) -> CheckedSql:
            try:
                names = [name for name in sorted(await _off_loop(request.sql, table_names)) if NAME.fullmatch(name)]
            except InvalidSql:
                await self._relations(case, [], user=user)  # the caller is audited even if the text cannot be parsed
                raise
            if len(names) > MAX_TABLES:
                raise InvalidSql(f"the query reads more than {MAX_TABLES} tables")
            await self._relations(
                case, [RelationRequest(name=name, as_of=request.as_of.get(name)) for name in names], user=user
            )
            return await _off_loop(request.sql, lambda text: self._gate(text, case.relations, case.readable))

        case = _Case(request)

        async def check() -> None:
            if lost := case.relations.keys() - await self.resolver.readable(case.relations, user):
                raise Forbidden(f"no right to read {', '.join(sorted(lost))}")

        return await self._case(case, look_up, watched=check)

    async def for_task(self, claims: Claims, request: TaskQueryRequest) -> tuple[QueryAnswer, pa.Table | None]:
        views: Mapping[str, View] = claims.grants.views
        fence = {"task_id": request.task_id, "attempt": request.attempt, "lease_token": request.lease_token}

        async def look_up(case: _Case) -> CheckedSql:
            case.caller = _attempt(claims)
            checked = await _off_loop(request.sql, lambda text: self._gate(text, views))
            tables = [
                RelationRequest(
                    name=name,
                    as_of=request.as_of.get(name),
                    dataset_version=views[name].dataset_version,
                    commit=views[name].commit,
                )
                for name in sorted(checked.tables)
            ]
            await self._relations(case, tables, **fence)
            return checked

        return await self._case(_Case(request), look_up, claims)

    async def _relations(self, case: _Case, tables: Sequence[RelationRequest], **whose: object) -> None:
        answer, case.relations = await self.resolver.relations(tables, **whose)  # type: ignore[arg-type]
        case.readable = answer.readable
        add_log_fields({"org": answer.org_id})
        set_attributes(org=answer.org_id)
        if answer.user_id is not None:
            case.caller = Caller(answer.org_id, ("user", answer.user_id), answer.user_id, limits=answer.limits)
        elif case.caller is not None:
            case.caller = replace(case.caller, priority=answer.priority, limits=answer.limits)

    async def _case(
        self,
        case: _Case,
        look_up: Callable[[_Case], Awaitable[CheckedSql]],
        claims: Claims | None = None,
        *,
        watched: Callable[[], Awaitable[None]] | None = None,
    ) -> tuple[QueryAnswer, pa.Table | None]:
        """`watched`: refuses when the caller has lost a right that the query needs."""
        verdict: Verdict = "canceled"
        code: str | None = None
        try:
            running = self._run(case, look_up, claims)
            if watched is not None:
                running = while_permitted(watched, running, self.settings.rights_seconds)
            case.result = await running
            verdict = "answered"
        except TraceError as refusal:
            verdict, code = "refused" if isinstance(refusal, BadInput | Refused) else "failed", refusal.code
            raise
        except Exception:
            verdict = "failed"
            raise
        finally:
            self._count(case, verdict)
            self._write_audit(case, verdict, code)
        return _answer(case), case.result.table

    async def _run(
        self, case: _Case, look_up: Callable[[_Case], Awaitable[CheckedSql]], claims: Claims | None
    ) -> QueryResult:
        for left in reversed(range(TRIES)):
            try:
                checked = await look_up(case)
                return await self.engine.run(self._checked_query(case, checked, claims))
            except (SnapshotMoved, SnapshotTooOld):
                if not left or not any(relation.hot for relation in case.relations.values()):
                    raise
        raise AssertionError("the last try returns or raises")

    def _checked_query(self, case: _Case, checked: CheckedSql, claims: Claims | None) -> CheckedQuery:
        request, limits = case.request, self.settings
        for name in request.as_of:
            if name not in checked.tables:
                raise InvalidRequest("the query reads no table of this name", where=f"/as_of/{name[:128]}")
        longest = limits.export_timeout_seconds if request.export else limits.timeout_seconds
        assert case.caller is not None  # noqa: S101 - looked up before
        return CheckedQuery(
            id=case.id,
            caller=case.caller,
            checked=checked,
            relations=narrowed(checked, {name: case.relations[name] for name in checked.tables}),
            max_rows=min(request.limit or limits.max_rows, limits.max_rows),
            seconds=min(request.timeout_seconds or longest, longest),
            answer_within=request.timeout_seconds,
            export=None if request.export is None else self._folder(case, claims),
            files=1 if request.export is None else request.export.files,
        )

    def _folder(self, case: _Case, claims: Claims | None) -> Folder:
        """Return a folder for this query: below the organisation's for a user, below a granted one for a task."""
        requested = case.request.export.to if case.request.export else None
        assert case.caller is not None  # noqa: S101
        if claims is None:
            if requested is not None:
                raise InvalidRequest("the service chooses the folder of a user's export", where="/export/to")
            return Folder.parse(self.settings.export_prefix).folder(str(case.caller.org_id), str(case.id))
        granted = sorted(claims.grants.storage.write, key=lambda folder: (folder.segments[0] != SCRATCH, folder))
        if requested is None and granted:
            return granted[0].folder("queries", str(case.id))
        if requested is not None:
            wanted = Folder.parse(requested)
            if any(folder == wanted or folder.holds(wanted) for folder in granted):
                return wanted
        raise Forbidden("the token grants no write access to this folder", where="/export/to")

    def _gate(self, text: str, names: Mapping[str, object], near: Sequence[str] = ()) -> CheckedSql:
        longest = self.settings.max_value_bytes
        return check_sql(text, names, deterministic=False, max_value_bytes=longest, near=near)

    def _count(self, case: _Case, verdict: Verdict) -> None:
        caller = "task" if isinstance(case.request, TaskQueryRequest) else "user"
        org = str(case.caller.org_id) if case.caller is not None else UNKNOWN_ORG
        self.metrics.queries.labels(org, caller, verdict).inc()
        self.metrics.query_seconds.labels(org, caller).observe(time.perf_counter() - case.began)
        if case.result:
            self.metrics.query_rows.labels(org).inc(case.result.rows)
            self.metrics.query_bytes.labels(org).inc(case.result.bytes)

    def _write_audit(self, case: _Case, verdict: Verdict, code: str | None) -> None:
        if case.caller is None:
            return  # the caller is unknown
        self.audit.note(
            AuditRow(
                id=case.id,
                org_id=case.caller.org_id,
                user_id=case.caller.user_id,
                task_id=case.caller.task_id,
                attempt=case.caller.attempt,
                asked_at=case.asked_at,
                sql_sha256=hashlib.sha256(case.request.sql.encode("utf-8", "surrogatepass")).hexdigest(),
                datasets=[relation.dataset_uuid for relation in case.relations.values()],
                verdict=verdict,
                code=code,
                rows=case.result.rows if case.result else 0,
                bytes=case.result.bytes if case.result else 0,
                milliseconds=case.milliseconds,
            )
        )


def _attempt(claims: Claims) -> Caller:
    grant = ("task", claims.task_id, claims.attempt)
    return Caller(claims.org_id, grant, task_id=claims.task_id, attempt=claims.attempt)


async def _off_loop(text: str, check: Callable[[str], T]) -> T:
    return check(text) if len(text) <= LONG else await asyncio.to_thread(check, text)


def _answer(case: _Case) -> QueryAnswer:
    assert case.result is not None  # noqa: S101 - answered
    return QueryAnswer(
        query_id=case.id,
        columns=case.result.columns,
        rows=[],
        row_count=case.result.rows,
        truncated=case.result.truncated,
        bytes=case.result.bytes,
        milliseconds=case.milliseconds,
        datasets=[
            ReadDataset(
                name=relation.name,
                dataset_uuid=relation.dataset_uuid,
                dataset_version=relation.dataset_version,
                commit=relation.commit,
                hot=relation.hot,
                behind=relation.behind,
            )
            for relation in case.relations.values()
        ],
        exported=case.result.exported,
        engine=case.result.engine,
    )
