"""Step 7 of one event: Queued to Running; lease, payload and token go back. Next: the operator runs.

Claims that arrive together are one statement (`runtime/coalesce.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID, uuid4, uuid5

import asyncpg
import msgspec

from tracelake.dispatcher.alerts.of_tasks import alerts_of
from tracelake.dispatcher.bundles.url import bundle_ref
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.dags.catalog import operators
from tracelake.dispatcher.tasks.grant import token_for
from tracelake.domain.task import TaskState, why_not_claimed
from tracelake.runtime.coalesce import Coalesced
from tracelake.runtime.crash_points import crash_point
from tracelake.store.jobs import Job, JobCache
from tracelake.store.queries import Connection, Queryable, queries
from tracelake.wire.task_messages import (
    AlertRef,
    BootstrapRef,
    Claimed,
    ClaimRequest,
    InputRef,
    JobRef,
    NotClaimed,
    OutputRef,
    ScopeRef,
    TaskPayload,
)

Answer = Claimed | NotClaimed
NAMES = msgspec.json.Decoder(dict[UUID, str | None])
INPUTS = msgspec.json.Decoder(list[InputRef])


def claimer(control: Control) -> Coalesced[ClaimRequest, Answer]:
    async def run(asked: Sequence[ClaimRequest]) -> Sequence[Answer | Exception]:
        crash_point("claim_task.before_commit")
        answers = await claim_tasks(control, asked)
        crash_point("claim_task.after_commit")
        return answers

    return Coalesced(run, key=lambda request: request.task_id, verb="claim", metrics=control.metrics)


async def claim_tasks(
    control: Control, asked: Sequence[ClaimRequest], connection: Connection | None = None
) -> list[Answer | Exception]:
    """`connection`: of a caller that claims in a transaction of its own."""
    database = connection or control.hot
    jobs = control.jobs.through(connection) if connection else control.jobs
    rows = await database.fetch(queries("claim")["claim_tasks"], *_columns(asked))
    control.metrics.moved(TaskState.QUEUED, TaskState.RUNNING, len(rows))
    given = {row["task_id"] for row in rows}
    statuses: dict[UUID, str] = {}
    if others := [request for request in asked if request.task_id not in given]:
        statuses = await _statuses(database, others)
        running = [other for other in others if statuses.get(other.task_id) == TaskState.RUNNING]
        rows += await claim_again(database, running)
        if waiting := [other for other in others if statuses.get(other.task_id) == TaskState.QUEUED]:
            rows += await _claim_waiting(control, database, waiting)
            statuses |= await _statuses(database, waiting)
    answers = {row["task_id"]: await _answer(control, jobs, row) for row in rows}
    claimed = {task: answer for task, answer in answers.items() if isinstance(answer, Claimed)}
    orgs = {row["task_id"]: row["org_id"] for row in rows}
    alerts = await alerts_of(connection or control.pool, {task: item.task for task, item in claimed.items()}, orgs)
    answers |= {task: _with_alerts(claimed[task], alert) for task, alert in alerts.items()}
    return [
        answers.get(request.task_id) or NotClaimed(reason=_why_not(statuses.get(request.task_id))) for request in asked
    ]


def _with_alerts(item: Claimed, alerts: list[AlertRef]) -> Claimed:
    return msgspec.structs.replace(item, task=msgspec.structs.replace(item.task, alerts=alerts))


def _columns(asked: Sequence[ClaimRequest]) -> tuple[list[UUID], list[str], list[UUID]]:
    return (
        [request.task_id for request in asked],
        [request.worker_id for request in asked],
        [_lease_token(request) for request in asked],
    )


def _lease_token(asked: ClaimRequest) -> UUID:
    """The same for a repeated request, so that the lease shows which request it answered; secret from others."""
    return uuid5(asked.claim_id, str(asked.task_id)) if asked.claim_id else uuid4()


async def claim_again(database: Queryable, asked: Sequence[ClaimRequest]) -> list[asyncpg.Record]:
    """Those that the callers hold already: their first answer was lost."""
    repeatable = [request for request in asked if request.claim_id]
    return await database.fetch(queries("claim")["claim_again"], *_columns(repeatable)) if repeatable else []


def _payload(job: Job, row: asyncpg.Record, inputs: list[InputRef]) -> TaskPayload:
    names = _names(row)
    return TaskPayload(
        task_id=row["task_id"],
        attempt=row["attempt"],
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
        scope=_scope(row["trigger"]),
        heartbeat_seconds=job.heartbeat_interval_seconds,
        timeout_seconds=row["timeout_seconds"],
        invalidation_id=row["invalidation_id"],
    )


async def _statuses(database: Queryable, asked: Sequence[ClaimRequest]) -> dict[UUID, str]:
    rows = await database.fetch(queries("claim")["statuses"], [request.task_id for request in asked])
    return {row["id"]: row["status"] for row in rows}


async def _claim_waiting(control: Control, database: Queryable, asked: Sequence[ClaimRequest]) -> list[asyncpg.Record]:
    """Tasks that wait and were not given. Those whose work a later task of their job does too are closed. The others
    are asked for again: what stood before them may have ended meanwhile.
    """
    rows = await database.fetch(queries("claim")["supersede"], [request.task_id for request in asked])
    closed = {row["id"] for row in rows}
    if closed:
        control.metrics.moved(TaskState.QUEUED, TaskState.CANCELED, len(closed))
        control.outbox_signal.notify()  # slots came back
    left = [request for request in asked if request.task_id not in closed]
    rows = await database.fetch(queries("claim")["claim_tasks"], *_columns(left)) if left else []
    control.metrics.moved(TaskState.QUEUED, TaskState.RUNNING, len(rows))
    return rows


async def _answer(control: Control, jobs: JobCache, row: asyncpg.Record) -> Claimed | Exception:
    """An error with one task (its code cannot be read, say) is the answer to its caller alone."""
    try:
        return await _claimed(control, await jobs.get(row["job_id"]), row)
    except Exception as wrong:  # noqa: BLE001 - it is the answer
        return wrong


async def _claimed(control: Control, job: Job, row: asyncpg.Record) -> Claimed:
    control.names.remember(row["task_id"], job)
    control.leases.due_in(job.heartbeat_timeout_seconds)
    task = await payload(control, job, row)
    return Claimed(
        attempt=row["attempt"],
        lease_token=row["lease_token"],
        lease_expires_at=row["lease_expires_at"],
        capability_token=await token_for(control, job, row["task_id"], row["attempt"], task.inputs, names=_names(row)),
        task=task,
    )


async def payload(control: Control, job: Job, row: asyncpg.Record) -> TaskPayload:
    """What a task is, the same for a claim, a fetch and a function's invocation; `alerts_of` adds its alerts."""
    task = _payload(job, row, _inputs(row["inputs"], _trigger_dataset(row["trigger"])))
    bootstrap = _bootstrap(row["bootstrap"])
    if bootstrap is not None:  # from the beginning: what a former version remembered is of what is reset now
        task = msgspec.structs.replace(task, bootstrap=bootstrap)
    elif row["state"]:
        task = msgspec.structs.replace(task, state=msgspec.json.decode(row["state"]))
    if job.bundle is not None:
        task = msgspec.structs.replace(task, udf=await bundle_ref(control, job.org_id, job.bundle))
    if job.secrets and _may_have_secrets(control, job):
        task = msgspec.structs.replace(task, secrets=job.secrets)
    return task


def _may_have_secrets(control: Control, job: Job) -> bool:
    """Asked again: it may be deployed from before this was refused, and its runtime may have become untrusted since."""
    runtime, operator = control.runtimes.get(job.runtime), operators().get(job.operator)
    takes = operator is not None and operator.takes_secrets
    return takes and job.bundle is None and runtime is not None and not runtime.untrusted


def _bootstrap(asked: str | None) -> BootstrapRef | None:
    found = msgspec.json.decode(asked, type=BootstrapRef) if asked else None
    return found if found is not None and found.reset_outputs else None


def _names(row: asyncpg.Record) -> dict[UUID, str | None]:
    """The published names of what it writes, as they are now: a job is kept for ever, a name is not."""
    return NAMES.decode(row.get("names") or "{}")


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
    scope = msgspec.json.decode(trigger) if trigger else {}
    return ScopeRef(**{name: scope.get(name) for name in ("cursor", "partition_key", "start", "end")})


def _trigger_dataset(trigger: str | None) -> UUID | None:
    return UUID(msgspec.json.decode(trigger)["dataset_uuid"]) if trigger else None
