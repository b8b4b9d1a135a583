"""Step 7 of one event: Queued to Running; lease, payload and token go back. Next: the operator runs.

Claims that arrive together are one statement (`runtime/coalesce.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4, uuid5

import asyncpg
import msgspec

from tracelake.dispatcher.alerts.of_tasks import alerts_of
from tracelake.dispatcher.bundles.url import BundleUrls
from tracelake.dispatcher.dags.catalog import operators
from tracelake.dispatcher.identity.stored_secrets import stored_secrets
from tracelake.dispatcher.signal import AfterCommit
from tracelake.dispatcher.tasks.grant import TokenMint
from tracelake.dispatcher.tasks.names import TaskNames
from tracelake.domain.access.seal import Seal
from tracelake.domain.task import TaskState, why_not_claimed
from tracelake.runtime.coalesce import Coalesced
from tracelake.runtime.crash_points import crash_point
from tracelake.settings import RuntimeSettings
from tracelake.store.jobs import JobCache, StoredJob
from tracelake.store.queries import Connection, Queryable, Row, fetch_column, fetch_rows, queries
from tracelake.wire.task.lifecycle import (
    AlertRef,
    BootstrapRef,
    Claimed,
    ClaimRequest,
    FireRef,
    InputRef,
    JobRef,
    NotClaimed,
    OutputRef,
    ScopeRef,
    TaskPayload,
    TaskStatus,
)

Answer = Claimed | NotClaimed


class BoundClaim(ClaimRequest, frozen=True, kw_only=True):
    """A claim by a service that may claim tasks of some runtimes."""

    runtimes: str
    """As an array of Postgres."""


def bind_claims(asked: Sequence[ClaimRequest], runtimes: Iterable[str]) -> list[BoundClaim]:
    """Claims that give only tasks of these runtimes; to the caller, others do not exist."""
    array = f"{{{','.join(sorted(runtimes))}}}"
    return [BoundClaim(item.task_id, item.worker_id, item.claim_id, runtimes=array) for item in asked]


NAMES = msgspec.json.Decoder(dict[UUID, str | None])
INPUTS = msgspec.json.Decoder(list[InputRef])


class ClaimedTask(Row, frozen=True):
    """A task as a claim returns it; for a fetch, without a lease."""

    task_id: UUID
    org_id: UUID
    job_id: UUID
    status: TaskStatus
    attempt: int
    lease_token: UUID
    lease_expires_at: datetime
    timeout_seconds: int | None
    trigger: str | None
    invalidation_id: UUID | None
    bootstrap: str | None
    inputs: str | None
    state: str | None
    names: str | None


SIGNED_AT_ONCE = 16
"""Tokens of one batch that a remote signer signs at the same time."""
FLUSH = '{"flush": true}'
"""What a task is created for that is to send what its operator has collected (`flow.flush`), as Postgres writes it."""


class UnclaimedTask(Row, frozen=True):
    id: UUID
    status: str


@dataclass(frozen=True)
class Payloads:
    """Describes tasks, the same for a claim, a fetch and a function's invocation; `alerts_of` adds their alerts."""

    runtimes: Mapping[str, RuntimeSettings]
    bundle_urls: BundleUrls

    async def payload(self, job: StoredJob, row: ClaimedTask) -> TaskPayload:
        task = _payload(job, row, _inputs(row.inputs, _trigger_dataset(row.trigger)))
        bootstrap = _bootstrap(row.bootstrap)
        if bootstrap is not None:  # from the beginning: what a former version remembered is of what is reset now
            task = msgspec.structs.replace(task, bootstrap=bootstrap)
        elif row.state:
            task = msgspec.structs.replace(task, state=msgspec.json.decode(row.state))
        if (fired := _fired(row.trigger)) is not None:
            task = msgspec.structs.replace(task, fired=fired)
        if row.trigger == FLUSH:
            task = msgspec.structs.replace(task, flush=True)
        if job.bundle is not None:
            task = msgspec.structs.replace(task, udf=await self.bundle_urls.ref(job.org_id, job.bundle))
        if job.secrets and self._may_have_secrets(job):
            task = msgspec.structs.replace(task, secrets=job.secrets)
        return task

    def _may_have_secrets(self, job: StoredJob) -> bool:
        """Checked again: it may be deployed from before this was refused, or its runtime be untrusted since."""
        runtime, operator = self.runtimes.get(job.runtime), operators().get(job.operator)
        takes = operator is not None and operator.takes_secrets
        return takes and job.bundle is None and runtime is not None and not runtime.untrusted


@dataclass(frozen=True)
class Claimer:
    pool: asyncpg.Pool
    hot: asyncpg.Pool
    jobs: JobCache
    payloads: Payloads
    tokens: TokenMint
    after: AfterCommit
    names: TaskNames
    seal: Seal

    def batched(self) -> Coalesced[ClaimRequest, Answer]:
        async def run(asked: Sequence[ClaimRequest]) -> Sequence[Answer | Exception]:
            crash_point("claim_task.before_commit")
            answers = await self.claim(asked)
            crash_point("claim_task.after_commit")
            return answers

        return Coalesced(run, key=lambda request: request.task_id, verb="claim", metrics=self.after.metrics)

    async def claim(
        self, asked: Sequence[ClaimRequest], connection: Connection | None = None
    ) -> list[Answer | Exception]:
        """`connection`: of a caller that claims in a transaction of its own."""
        database = connection or self.hot
        rows = await self._claim(database, asked)
        given = {row.task_id for row in rows}
        statuses: dict[UUID, str] = {}
        if others := [request for request in asked if request.task_id not in given]:
            statuses = await _statuses(database, others)
            running = [other for other in others if statuses.get(other.task_id) == TaskState.RUNNING]
            rows += await claim_again(database, running)
            if waiting := [other for other in others if statuses.get(other.task_id) == TaskState.QUEUED]:
                rows += await self._claim_waiting(database, waiting)
                statuses |= await _statuses(database, waiting)
        jobs = self.jobs.through(connection) if connection else self.jobs
        answers = await self._answers(jobs, rows, one_by_one=connection is not None or not self.tokens.signer.remote)
        claimed = {task: answer for task, answer in answers.items() if isinstance(answer, Claimed)}
        orgs = {row.task_id: row.org_id for row in rows}
        alerts = await alerts_of(connection or self.pool, {task: item.task for task, item in claimed.items()}, orgs)
        answers |= {task: _with_alerts(claimed[task], alert) for task, alert in alerts.items()}
        answers |= await self._with_secrets(connection or self.pool, answers, orgs)
        return [
            answers.get(request.task_id) or NotClaimed(reason=_why_not(statuses.get(request.task_id)))
            for request in asked
        ]

    async def _with_secrets(
        self, database: Queryable, answers: Mapping[UUID, Claimed | Exception], orgs: Mapping[UUID, UUID]
    ) -> dict[UUID, Claimed]:
        """Those whose jobs name secrets, with the values that their own organisation has stored."""
        named = {
            task: (item, item.task.secrets)
            for task, item in answers.items()
            if isinstance(item, Claimed) and item.task.secrets
        }
        if not named:
            return {}
        wanted = [(orgs[task], name) for task, (_, names) in named.items() for name in names]
        found = await stored_secrets(database, self.seal, "job", wanted)
        return {
            task: _with_values(
                item, {name.lower(): found[key] for name in names if (key := (orgs[task], name.lower())) in found}
            )
            for task, (item, names) in named.items()
        }

    async def _claim(self, database: Queryable, asked: Sequence[ClaimRequest]) -> list[ClaimedTask]:
        rows = await fetch_rows(
            database, queries("claim")["claim_tasks"], ClaimedTask, *_columns(asked), _runtimes(asked)
        )
        self.after.metrics.moved(TaskState.QUEUED, TaskState.RUNNING, len(rows))
        return rows

    async def _claim_waiting(self, database: Queryable, asked: Sequence[ClaimRequest]) -> list[ClaimedTask]:
        """Tasks that wait and were not given. Those whose work a later task of their job does too are closed. The
        others are asked for again: what stood before them may have ended meanwhile.
        """
        sql = queries("claim")["supersede"]
        closed = set(await fetch_column(database, sql, [request.task_id for request in asked]))
        if closed:
            self.after.metrics.moved(TaskState.QUEUED, TaskState.CANCELED, len(closed))
            self.after.outbox.notify()  # slots came back
        left = [request for request in asked if request.task_id not in closed]
        return await self._claim(database, left) if left else []

    async def _answers(
        self, jobs: JobCache, rows: Sequence[ClaimedTask], *, one_by_one: bool
    ) -> dict[UUID, Claimed | Exception]:
        """By task. `one_by_one`: on one connection, or where nothing is waited for."""
        if one_by_one:
            return {row.task_id: await self._answer(jobs, row) for row in rows}
        answers: dict[UUID, Claimed | Exception] = {}
        for start in range(0, len(rows), SIGNED_AT_ONCE):
            some = rows[start : start + SIGNED_AT_ONCE]
            given = await asyncio.gather(*(self._answer(jobs, row) for row in some))
            answers |= {row.task_id: answer for row, answer in zip(some, given, strict=True)}
        return answers

    async def _answer(self, jobs: JobCache, row: ClaimedTask) -> Claimed | Exception:
        """An error with one task (its code cannot be read, say) is the answer to its caller alone."""
        try:
            return await self._claimed(await jobs.get(row.job_id), row)
        except Exception as wrong:  # noqa: BLE001 - it is the answer
            return wrong

    async def _claimed(self, job: StoredJob, row: ClaimedTask) -> Claimed:
        self.names.remember(row.task_id, job)
        self.after.leases.due_in(job.heartbeat_timeout_seconds)
        task = await self.payloads.payload(job, row)
        return Claimed(
            attempt=row.attempt,
            lease_token=row.lease_token,
            lease_expires_at=row.lease_expires_at,
            capability_token=await self.tokens.token_for(job, row.task_id, row.attempt, task.inputs, names=_names(row)),
            task=task,
        )


def _with_alerts(item: Claimed, alerts: list[AlertRef]) -> Claimed:
    return msgspec.structs.replace(item, task=msgspec.structs.replace(item.task, alerts=alerts))


def _with_values(item: Claimed, values: dict[str, str | None]) -> Claimed:
    return msgspec.structs.replace(item, secret_values=values) if values else item


def _columns(asked: Sequence[ClaimRequest]) -> tuple[list[UUID], list[str], list[UUID]]:
    return (
        [request.task_id for request in asked],
        [request.worker_id for request in asked],
        [_lease_token(request) for request in asked],
    )


def _runtimes(asked: Sequence[ClaimRequest]) -> list[str | None]:
    """The Dispatcher claims for itself without a limit."""
    return [request.runtimes if isinstance(request, BoundClaim) else None for request in asked]


def _lease_token(asked: ClaimRequest) -> UUID:
    """The same for a repeated request, so that the lease shows which request it answered; secret from others."""
    return uuid5(asked.claim_id, str(asked.task_id)) if asked.claim_id else uuid4()


async def claim_again(database: Queryable, asked: Sequence[ClaimRequest]) -> list[ClaimedTask]:
    """Those that the callers hold already: their first answer was lost."""
    repeatable = [request for request in asked if request.claim_id]
    if not repeatable:
        return []
    return await fetch_rows(database, queries("claim")["claim_again"], ClaimedTask, *_columns(repeatable))


def _payload(job: StoredJob, row: ClaimedTask, inputs: list[InputRef]) -> TaskPayload:
    names = _names(row)
    return TaskPayload(
        task_id=row.task_id,
        attempt=row.attempt,
        job=JobRef(dag_name=job.dag_name, name=job.name),
        operator=job.operator,
        config=job.config,
        inputs=inputs,
        outputs=[
            OutputRef(
                output_index=output.output_index,
                dataset_uuid=output.dataset_uuid,
                dataset_version=output.dataset_version,
                storage_location=output.storage_location,
                name=names.get(output.dataset_uuid),
            )
            for output in job.outputs
        ],
        scope=_scope(row.trigger),
        heartbeat_seconds=job.heartbeat_interval_seconds,
        timeout_seconds=row.timeout_seconds,
        invalidation_id=row.invalidation_id,
    )


async def _statuses(database: Queryable, asked: Sequence[ClaimRequest]) -> dict[UUID, str]:
    tasks, runtimes = [request.task_id for request in asked], _runtimes(asked)
    rows = await fetch_rows(database, queries("claim")["statuses"], UnclaimedTask, tasks, runtimes)
    return {row.id: row.status for row in rows}


def _bootstrap(asked: str | None) -> BootstrapRef | None:
    found = msgspec.json.decode(asked, type=BootstrapRef) if asked else None
    return found if found is not None and found.reset_outputs else None


def _names(row: ClaimedTask) -> dict[UUID, str | None]:
    """The published names of what it writes, as they are now: a job is kept for ever, a name is not."""
    return NAMES.decode(row.names or "{}")


def _why_not(was: str | None) -> Any:
    # A task that is Queued and was not claimed lost a race, or waits for a slot whose wake-up will come.
    reason = why_not_claimed(TaskState(was) if was else None)
    return "AlreadyRunning" if reason is None else str(reason)


def _inputs(inputs: str | None, trigger: UUID | None) -> list[InputRef]:
    """`trigger`: the dataset whose event created the task."""
    return [
        msgspec.structs.replace(ref, trigger=True) if ref.dataset_uuid == trigger else ref
        for ref in INPUTS.decode(inputs or "[]")
    ]


def _scope(trigger: str | None) -> ScopeRef:
    """Of a source's task, what it was fired for; of any other, the part of a dataset that is new."""
    found = msgspec.json.decode(trigger) if trigger else {}
    scope = found.get("scope", found)
    return ScopeRef(**{name: scope.get(name) for name in ("cursor", "partition_key", "start", "end")})


def _trigger_dataset(trigger: str | None) -> UUID | None:
    """None: it was fired as a source."""
    dataset = msgspec.json.decode(trigger).get("dataset_uuid") if trigger else None
    return None if dataset is None else UUID(dataset)


def _fired(trigger: str | None) -> FireRef | None:
    if trigger is None or '"fired"' not in trigger:  # most tasks: spared the reading
        return None
    fired = msgspec.json.decode(trigger).get("fired")
    return None if fired is None else msgspec.convert(fired, FireRef)
