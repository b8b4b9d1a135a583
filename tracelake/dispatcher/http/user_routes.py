"""Calls of users, at the internal API: the Gateway has verified the user, whose role decides what is allowed.

A caller here names a user in `X-Trace-User`: the Gateway, or a service that it asked to act for him. Organisation and
role are read from that
user's row for each call, so a role taken away is gone at once; nothing in a request can choose either.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any
from uuid import UUID, uuid4

import asyncpg
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tracelake.dispatcher.alerts.edit import create_alert, delete_alert, update_alert
from tracelake.dispatcher.alerts.edit_channels import create_channel, delete_channel, update_channel
from tracelake.dispatcher.alerts.show import list_alerts, list_channels, show_alert, show_channel
from tracelake.dispatcher.audit.record import CallEntry, origin_of, recorded
from tracelake.dispatcher.buffers.dead_batches import list_dead_batches, replay_batch
from tracelake.dispatcher.bundles.list import list_bundles, show_bundle
from tracelake.dispatcher.bundles.push import announce_bundle, finalize_bundle, upload_bundle
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.dags.activate import activate_dag
from tracelake.dispatcher.dags.deactivate import deactivate_dag
from tracelake.dispatcher.dags.delete import delete_dag
from tracelake.dispatcher.dags.deploy import deploy_named
from tracelake.dispatcher.dags.show import list_dags, list_versions, show_dag
from tracelake.dispatcher.datasets.drop import drop_dataset
from tracelake.dispatcher.datasets.list_current_files import list_dataset_files
from tracelake.dispatcher.datasets.list_ledger import list_ledger
from tracelake.dispatcher.datasets.show import list_datasets, show_dataset
from tracelake.dispatcher.datasets.show_usage import show_usage
from tracelake.dispatcher.events.invalidate import invalidate
from tracelake.dispatcher.events.trigger import trigger
from tracelake.dispatcher.events.trigger_progress import trigger_progress
from tracelake.dispatcher.flow.list_in_flight import list_in_flight
from tracelake.dispatcher.flow.list_pauses import list_pauses
from tracelake.dispatcher.flow.pause_job import pause_job, resume_job
from tracelake.dispatcher.http.auth import calling_user
from tracelake.dispatcher.http.identity_verbs import IDENTITY_VERBS
from tracelake.dispatcher.http.user_call import UserCall, Verb
from tracelake.dispatcher.identity.known_tokens import KnownTokens
from tracelake.dispatcher.identity.stored_secrets import hook_secrets_of
from tracelake.dispatcher.limits.refuse_if_full import refuse_if_full
from tracelake.dispatcher.outbox.list import list_outbox
from tracelake.dispatcher.outbox.retry import retry_outbox
from tracelake.dispatcher.queues.dead_messages import list_dead_messages, redrive
from tracelake.dispatcher.releases.abandon import abandon_release
from tracelake.dispatcher.releases.plan import plan_change
from tracelake.dispatcher.releases.promote import promote_release, rollback_release
from tracelake.dispatcher.releases.request_comparisons import request_comparisons
from tracelake.dispatcher.releases.show import list_releases, show_release
from tracelake.dispatcher.releases.start import start_release
from tracelake.dispatcher.signal import AfterCommit
from tracelake.dispatcher.sources.show import list_deliveries, list_sources, show_source
from tracelake.dispatcher.sources.warn_missing_secrets import warn_missing_secrets
from tracelake.dispatcher.tasks.cancel import cancel_task
from tracelake.dispatcher.tasks.cancel_many import cancel_tasks
from tracelake.dispatcher.tasks.list import failed_tasks, list_tasks
from tracelake.dispatcher.tasks.read_logs import read_logs
from tracelake.dispatcher.tasks.retry import retry_task
from tracelake.dispatcher.tasks.retry_many import retry_tasks
from tracelake.dispatcher.tasks.show import show_task
from tracelake.dispatcher.versions.gaps import list_gaps
from tracelake.dispatcher.versions.show_backfills import BackfillChange, change_backfill, list_backfills, show_backfill
from tracelake.dispatcher.versions.start_backfill import start_backfill
from tracelake.dispatcher.why.explain import explain
from tracelake.domain.event import read_partition
from tracelake.errors import InvalidRequest
from tracelake.runtime.listeners import json_response
from tracelake.runtime.logs import add_log_fields
from tracelake.runtime.read_body import read_bounded
from tracelake.runtime.tracing import set_attributes
from tracelake.store.db import OUTAGES, unavailable
from tracelake.store.identity import User
from tracelake.wire.calls.read_call import read_body, read_query, require_platform, require_role
from tracelake.wire.calls.user_calls import CALLS, Call, named
from tracelake.wire.message import Message
from tracelake.wire.record_call import client_of, object_of
from tracelake.wire.user.backfills import BackfillRow
from tracelake.wire.user.dags import ActivateAnswer, DagWarning, DeployAnswer, TriggerAnswer, TriggerRequest
from tracelake.wire.user.datasets import InvalidateAnswer, InvalidateRequest
from tracelake.wire.user.releases import Plan, ReleaseAnswer
from tracelake.wire.user.sources import SourceDetail, SourceList


def user_routes(control: Control, known: KnownTokens) -> list[Route]:
    return [
        Route(f"/internal/v1{call.path}", _endpoint(control, known, call, VERBS[name]), methods=[call.method])
        for name, call in CALLS.items()
        if call.service == "dispatcher"
    ]


def _endpoint(control: Control, known: KnownTokens, call: Call, verb: Verb) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            user = await calling_user(control.pool, known, request)
            add_log_fields({"org": user.org_id})
            set_attributes(org=user.org_id)
            path = named(request.path_params)
            async with recorded(control.pool, _entry(user, call, path, request), reads=call.method == "GET"):
                require_role(user.role, call)
                require_platform(user.platform_admin, call)
                if call.adds_files:
                    await refuse_if_full(control.pool, user.org_id)
                query = read_query(request, call)
                asked = UserCall(control, user, path, query, await _body(control, request, call))
                return json_response(await _tried_twice(verb, asked))
        except OUTAGES as away:
            raise unavailable(away, control.home) from None

    return endpoint


def _entry(user: User, call: Call, path: Mapping[str, str], request: Request) -> CallEntry:
    return CallEntry(user.id, call.name, object_of(path), origin_of(user, client_of(request)))


async def _tried_twice(verb: Verb, asked: UserCall) -> Any:
    """A transaction that Postgres rolled back for the sake of another stored nothing: most often it works at once."""
    try:
        return await verb(asked)
    except asyncpg.TransactionRollbackError:
        return await verb(asked)


async def _body(control: Control, request: Request, call: Call) -> Message | bytes | None:
    if call.takes_bytes is not None:
        return await read_bounded(request.stream(), min(call.most_bytes, control.bundles.max_bytes))
    return await read_body(request, call)


async def _deploy(asked: UserCall) -> DeployAnswer:
    runtimes, bucket = asked.control.runtime_specs(), asked.control.places.bucket
    named = asked.user, asked.path["dag"], asked.body.yaml
    done = await deploy_named(asked.pool, *named, runtimes=runtimes, bucket=bucket)
    missing = await asyncio.to_thread(warn_missing_secrets, asked.body.yaml, await _hook_secrets(asked))
    return DeployAnswer(
        dag_version_id=done.dag_version_id,
        dag_name=done.dag_name,
        yaml_hash=done.yaml_hash,
        created=done.created,
        jobs=list(done.jobs),
        datasets=list(done.datasets.values()),
        warnings=[DagWarning(**asdict(warning)) for warning in (*done.warnings, *missing)],
    )


async def _hook_secrets(asked: UserCall) -> Mapping[str, Sequence[str]]:
    return await hook_secrets_of(asked.pool, asked.control.seal, asked.org, asked.control.hook_secrets)


async def _list_sources(asked: UserCall) -> SourceList:
    return await list_sources(asked.pool, asked.org, asked.query.dag, await _hook_secrets(asked))


async def _show_source(asked: UserCall) -> SourceDetail:
    named = asked.path["dag"], asked.path["job"]
    return await show_source(asked.pool, asked.org, *named, await _hook_secrets(asked))


async def _activate(asked: UserCall) -> ActivateAnswer:
    version = asked.org, asked.path["dag"], asked.body.dag_version_id
    done = await activate_dag(asked.pool, asked.after, *version, runtimes=asked.control.runtime_specs())
    return ActivateAnswer(
        dag_name=asked.path["dag"],
        dag_version_id=done.dag_version_id,
        former=done.former,
        changed=done.changed,
        canceled_tasks=done.canceled_tasks,
        made_again=done.made_again,
    )


async def _plan(asked: UserCall) -> Plan:
    runtimes = asked.control.runtime_specs()
    return (await plan_change(asked.pool, asked.org, asked.body.dags, runtimes=runtimes)).plan


async def _start_release(asked: UserCall) -> ReleaseAnswer:
    runtimes, bucket = asked.control.runtime_specs(), asked.control.places.bucket
    return await start_release(asked.pool, asked.after, asked.user, asked.body, runtimes=runtimes, bucket=bucket)


def _release(asked: UserCall) -> tuple[asyncpg.Pool, AfterCommit, UUID, UUID]:
    return asked.pool, asked.after, asked.org, UUID(asked.path["release"])


async def _trigger(asked: UserCall) -> TriggerAnswer:
    requested: TriggerRequest = asked.body
    request_id = requested.request_id or uuid4()
    dag, job = asked.path["dag"], asked.path["job"]
    scope = {
        "jobs": asked.control.jobs,
        "cursor": requested.cursor,
        "partition": requested.partition,
        "start": requested.start,
        "end": requested.end,
    }
    try:
        done = await trigger(asked.pool, asked.after, asked.org, dag, job, **scope, request_id=request_id)  # type: ignore[arg-type]
    except InvalidRequest as wrong:
        # A task's events call it otherwise; here the field is `partition`.
        where = "/partition" if wrong.where == "/partition_key" else wrong.where
        raise InvalidRequest(wrong.message, where=where, hint=wrong.hint) from None
    return TriggerAnswer(
        request_id=request_id, event_ids=list(done.event_ids), created=done.created, task_id=done.task_id
    )


async def _invalidate(asked: UserCall) -> InvalidateAnswer:
    requested: InvalidateRequest = asked.body
    try:
        scope = read_partition(partition_key=requested.partition, start=requested.start, end=requested.end)
    except InvalidRequest as wrong:
        where = "/partition" if wrong.where == "/partition_key" else wrong.where or "/start"
        raise InvalidRequest(wrong.message, where=where, hint=wrong.hint) from None
    done = await invalidate(
        asked.pool,
        asked.after.outbox,
        asked.org,
        asked.user.id,
        asked.path["dataset"],
        scope=scope,
        reason=requested.reason,
        request_id=requested.request_id or uuid4(),
    )
    return InvalidateAnswer(
        invalidation_id=done.invalidation_id,
        dataset_uuid=done.dataset_uuid,
        dataset_version=done.dataset_version,
        created=done.created,
    )


async def _change_backfill(asked: UserCall, to: BackfillChange) -> BackfillRow:
    found = UUID(asked.path["backfill"])
    return await change_backfill(asked.pool, asked.after.backfills, asked.org, found, to, budget=asked.body)


VERBS: Mapping[str, Verb] = {
    **IDENTITY_VERBS,
    "list_dags": lambda asked: list_dags(asked.pool, asked.org),
    "show_dag": lambda asked: show_dag(asked.pool, asked.org, asked.path["dag"]),
    "deploy": _deploy,
    "activate": _activate,
    "plan": _plan,
    "start_release": _start_release,
    "list_releases": lambda asked: list_releases(asked.pool, asked.org),
    "show_release": lambda asked: show_release(asked.pool, asked.user, UUID(asked.path["release"])),
    "compare_release": lambda asked: request_comparisons(
        asked.pool, asked.after, asked.user, UUID(asked.path["release"])
    ),
    "promote_release": lambda asked: promote_release(
        *_release(asked), runtimes=asked.control.runtime_specs(), force=asked.body is not None and asked.body.force
    ),
    "rollback_release": lambda asked: rollback_release(*_release(asked), runtimes=asked.control.runtime_specs()),
    "abandon_release": lambda asked: abandon_release(*_release(asked)),
    "deactivate": lambda asked: deactivate_dag(asked.pool, asked.after, asked.org, asked.path["dag"]),
    "delete_dag": lambda asked: delete_dag(asked.pool, asked.user, asked.path["dag"], dry_run=asked.query.dry_run),
    "trigger": _trigger,
    "trigger_progress": lambda asked: trigger_progress(
        asked.pool, asked.org, UUID(asked.path["request"]), downstream=asked.query.downstream
    ),
    "pause_job": lambda asked: pause_job(asked.pool, asked.after, asked.user, asked.path["dag"], asked.path["job"]),
    "resume_job": lambda asked: resume_job(asked.pool, asked.after, asked.user, asked.path["dag"], asked.path["job"]),
    "list_in_flight": lambda asked: list_in_flight(asked.pool, asked.org),
    "list_pauses": lambda asked: list_pauses(asked.pool, asked.org),
    "list_sources": _list_sources,
    "show_source": _show_source,
    "fire_source": lambda asked: asked.control.fire_source().fire(
        asked.org, asked.path["dag"], asked.path["job"], asked.body
    ),
    "list_deliveries_of_source": lambda asked: list_deliveries(
        asked.pool, asked.org, asked.path["dag"], asked.path["job"], asked.query
    ),
    "replay_delivery": lambda asked: asked.control.fire_source().replay(
        asked.org, asked.path["dag"], asked.path["job"], UUID(asked.path["delivery"]), asked.body
    ),
    "invalidate": _invalidate,
    "list_tasks": lambda asked: list_tasks(asked.pool, asked.org, asked.query),
    "failed_tasks": lambda asked: failed_tasks(asked.pool, asked.org),
    "show_task": lambda asked: show_task(asked.pool, asked.org, UUID(asked.path["task"])),
    "task_logs": lambda asked: read_logs(asked.pool, asked.org, UUID(asked.path["task"]), asked.query),
    "retry_task": lambda asked: retry_task(asked.pool, asked.after, asked.org, UUID(asked.path["task"])),
    "cancel_task": lambda asked: cancel_task(
        asked.pool, asked.after, asked.org, UUID(asked.path["task"]), asked.body.reason
    ),
    "cancel_tasks": lambda asked: cancel_tasks(asked.pool, asked.after, asked.org, asked.body),
    "retry_tasks": lambda asked: retry_tasks(asked.pool, asked.after, asked.org, asked.body),
    "list_datasets": lambda asked: list_datasets(asked.pool, asked.user),
    "list_dataset_files": lambda asked: list_dataset_files(asked.pool, asked.user, asked.path["dataset"]),
    "drop_dataset": lambda asked: drop_dataset(asked.pool, asked.user, asked.path["dataset"]),
    "list_ledger": lambda asked: list_ledger(asked.pool, asked.user, asked.path["dataset"], asked.query),
    "show_dataset": lambda asked: show_dataset(asked.pool, asked.user, asked.path["dataset"]),
    "show_usage": lambda asked: show_usage(asked.pool, asked.org, asked.query),
    "list_outbox": lambda asked: list_outbox(asked.pool, asked.org, asked.query),
    "retry_outbox": lambda asked: retry_outbox(asked.pool, asked.after.outbox, asked.org, asked.body.ids),
    "list_dead_messages": lambda asked: list_dead_messages(asked.control.queue, asked.control.runtimes, asked.query),
    "redrive_messages": lambda asked: redrive(
        asked.control.queue, asked.control.runtimes, asked.path["queue"], asked.body.ids
    ),
    "list_dead_batches": lambda asked: list_dead_batches(asked.pool, asked.org, asked.query),
    "replay_batch": lambda asked: replay_batch(
        asked.pool,
        asked.after.outbox,
        asked.org,
        UUID(asked.path["publish"]),
        asked.body.batch,
        objects=asked.control.objects,
        scratch_bucket=asked.control.places.scratch_bucket,
    ),
    "announce_bundle": lambda asked: announce_bundle(
        asked.pool, asked.user, asked.body, bucket=asked.control.places.bucket, limit=asked.control.bundles.max_bytes
    ),
    "upload_bundle": lambda asked: upload_bundle(
        asked.pool,
        asked.org,
        UUID(asked.path["bundle"]),
        asked.body,
        objects=asked.control.objects,
        limit=asked.control.bundles.max_bytes,
    ),
    "finalize_bundle": lambda asked: finalize_bundle(
        asked.pool,
        asked.org,
        UUID(asked.path["bundle"]),
        objects=asked.control.objects,
        limits=asked.control.bundle_limits(),
    ),
    "list_bundles": lambda asked: list_bundles(asked.pool, asked.org, asked.query),
    "show_bundle": lambda asked: show_bundle(
        asked.pool, asked.control.bundles.max_bytes, asked.org, UUID(asked.path["bundle"])
    ),
    "gaps": lambda asked: list_gaps(asked.pool, asked.user, asked.query),
    "start_backfill": lambda asked: start_backfill(
        asked.pool, asked.after.backfills, asked.user, asked.path["dag"], asked.body
    ),
    "list_backfills": lambda asked: list_backfills(asked.pool, asked.org),
    "show_backfill": lambda asked: show_backfill(asked.pool, asked.org, UUID(asked.path["backfill"])),
    "pause_backfill": lambda asked: _change_backfill(asked, "Paused"),
    "resume_backfill": lambda asked: _change_backfill(asked, "Running"),
    "cancel_backfill": lambda asked: _change_backfill(asked, "Canceled"),
    "why": lambda asked: explain(asked.pool, asked.user, asked.query),
    "list_versions": lambda asked: list_versions(asked.pool, asked.org, asked.path["dag"]),
    "list_alerts": lambda asked: list_alerts(asked.pool, asked.org),
    "create_alert": lambda asked: create_alert(asked.pool, asked.user, asked.body),
    "show_alert": lambda asked: show_alert(asked.pool, asked.org, asked.path["alert"]),
    "update_alert": lambda asked: update_alert(asked.pool, asked.user, asked.path["alert"], asked.body),
    "delete_alert": lambda asked: delete_alert(asked.pool, asked.user, asked.path["alert"]),
    "list_channels": lambda asked: list_channels(asked.pool, asked.org),
    "create_channel": lambda asked: create_channel(asked.pool, asked.user, asked.body),
    "show_channel": lambda asked: show_channel(asked.pool, asked.org, asked.path["channel"]),
    "update_channel": lambda asked: update_channel(asked.pool, asked.user, asked.path["channel"], asked.body),
    "delete_channel": lambda asked: delete_channel(asked.pool, asked.user, asked.path["channel"]),
}
