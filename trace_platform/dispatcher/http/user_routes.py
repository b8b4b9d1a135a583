"""What people ask, at the internal door: the Gateway verified who asks, the users table says what he may.

A caller here has shown a worker token and names a user in `X-Trace-User`. Organisation and role are read from that
user's row for each call, so a role taken away is gone at once; nothing in a request can choose either.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import unquote
from uuid import UUID, uuid4

import asyncpg
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from trace_platform.contracts import Message
from trace_platform.dispatcher.activate_dag import activate_dag
from trace_platform.dispatcher.announce_bundle import announce_bundle
from trace_platform.dispatcher.cancel_task import cancel_task
from trace_platform.dispatcher.control import Control
from trace_platform.dispatcher.deploy_named import deploy_named
from trace_platform.dispatcher.edit_alerts import create_alert, delete_alert, update_alert
from trace_platform.dispatcher.edit_channels import create_channel, delete_channel, update_channel
from trace_platform.dispatcher.explain import explain
from trace_platform.dispatcher.failed_tasks import failed_tasks
from trace_platform.dispatcher.finalize_bundle import finalize_bundle
from trace_platform.dispatcher.http.auth import WorkerGate
from trace_platform.dispatcher.invalidate import invalidate
from trace_platform.dispatcher.list_bundles import list_bundles, show_bundle
from trace_platform.dispatcher.list_dataset_files import list_dataset_files
from trace_platform.dispatcher.list_datasets import list_datasets
from trace_platform.dispatcher.list_dead_batches import list_dead_batches
from trace_platform.dispatcher.list_outbox import list_outbox
from trace_platform.dispatcher.list_tasks import list_tasks
from trace_platform.dispatcher.list_versions import list_versions
from trace_platform.dispatcher.pause_source import pause_source, resume_source
from trace_platform.dispatcher.read_logs import read_logs
from trace_platform.dispatcher.replay_batch import replay_batch
from trace_platform.dispatcher.retry_outbox import retry_outbox
from trace_platform.dispatcher.retry_task import retry_task
from trace_platform.dispatcher.show_alerts import list_alerts, list_channels, show_alert, show_channel
from trace_platform.dispatcher.show_dags import dag_for, dags_for
from trace_platform.dispatcher.show_dataset import show_dataset
from trace_platform.dispatcher.show_task import show_task
from trace_platform.dispatcher.trigger import trigger
from trace_platform.dispatcher.upload_bundle import upload_bundle
from trace_platform.doors import json_response
from trace_platform.errors import InvalidRequest, Unauthenticated
from trace_platform.store.db import OUTAGES, unavailable
from trace_platform.store.identity import User, find_user
from trace_platform.user_calls import CALLS, USER, Call, named
from trace_platform.user_contracts import (
    ActivateAnswer,
    DagWarning,
    DeployAnswer,
    InvalidateAnswer,
    InvalidateRequest,
    TriggerAnswer,
    TriggerRequest,
)
from trace_platform.user_requests import read_body, read_bytes, read_query, require_role


@dataclass(frozen=True)
class Asked:
    """A call that may be made: by whom, about what, with what."""

    control: Control
    user: User
    path: Mapping[str, str]
    query: Any
    body: Any

    @property
    def org(self) -> UUID:
        return self.user.org_id


Verb = Callable[[Asked], Awaitable[Any]]


def user_routes(control: Control) -> list[Route]:
    gate = WorkerGate(control.pool)
    return [
        Route(f"/internal/v1{call.path}", _endpoint(control, gate, call, VERBS[name]), methods=[call.method])
        for name, call in CALLS.items()
        if call.door == "dispatcher"
    ]


def _endpoint(control: Control, gate: WorkerGate, call: Call, verb: Verb) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            await gate.require(request)
            user = await asking_user(control, request)
            require_role(user.role, call)
            path, query = named(request.path_params), read_query(request, call)
            asked = Asked(control, user, path, query, await _body(control, request, call))
            return json_response(await _tried_twice(verb, asked))
        except OUTAGES as away:
            raise unavailable(away, control.home) from None

    return endpoint


async def _tried_twice(verb: Verb, asked: Asked) -> Any:
    """A transaction that Postgres rolled back for the sake of another stored nothing: most often it works at once."""
    try:
        return await verb(asked)
    except asyncpg.TransactionRollbackError:
        return await verb(asked)


async def asking_user(control: Control, request: Request) -> User:
    """As the Gateway named him. The header is percent-encoded: a subject may be any text."""
    subject = unquote(request.headers.get(USER, ""))
    found = await find_user(control.pool, subject) if subject and "\0" not in subject else None
    if found is None:
        raise Unauthenticated("the token is good, but its user is not known here", where=f"header {USER}")
    return found


async def _body(control: Control, request: Request, call: Call) -> Message | bytes | None:
    if call.takes_bytes is not None:
        return await read_bytes(request, min(call.most_bytes, control.bundles.max_bytes))
    return await read_body(request, call)


async def _deploy(asked: Asked) -> DeployAnswer:
    done = await deploy_named(asked.control, asked.user, asked.path["dag"], asked.body.yaml)
    return DeployAnswer(
        dag_version_id=done.dag_version_id,
        dag_name=done.dag_name,
        yaml_hash=done.yaml_hash,
        created=done.created,
        jobs=list(done.jobs),
        datasets=list(done.datasets.values()),
        warnings=[DagWarning(**asdict(warning)) for warning in done.warnings],
    )


async def _activate(asked: Asked) -> ActivateAnswer:
    done = await activate_dag(asked.control, asked.org, asked.path["dag"], asked.body.dag_version_id)
    return ActivateAnswer(
        dag_name=asked.path["dag"],
        dag_version_id=done.dag_version_id,
        former=done.former,
        changed=done.changed,
        canceled_tasks=done.canceled_tasks,
        made_again=done.made_again,
    )


async def _trigger(asked: Asked) -> TriggerAnswer:
    wish: TriggerRequest = asked.body
    request_id = wish.request_id or uuid4()
    dag, job = asked.path["dag"], asked.path["job"]
    scope = {"cursor": wish.cursor, "partition": wish.partition, "start": wish.start, "end": wish.end}
    try:
        done = await trigger(asked.control, asked.org, dag, job, **scope, request_id=request_id)  # type: ignore[arg-type]
    except InvalidRequest as wrong:
        # A task's events call it otherwise; here the field is `partition`.
        where = "/partition" if wrong.where == "/partition_key" else wrong.where
        raise InvalidRequest(wrong.message, where=where, hint=wrong.hint) from None
    return TriggerAnswer(request_id=request_id, event_ids=list(done.event_ids), created=done.created)


async def _invalidate(asked: Asked) -> InvalidateAnswer:
    wish: InvalidateRequest = asked.body
    done = await invalidate(
        asked.control,
        asked.org,
        asked.user.id,
        asked.path["dataset"],
        start=wish.start,
        end=wish.end,
        reason=wish.reason,
        request_id=wish.request_id or uuid4(),
    )
    return InvalidateAnswer(
        invalidation_id=done.invalidation_id,
        dataset_uuid=done.dataset_uuid,
        dataset_version=done.dataset_version,
        created=done.created,
    )


VERBS: Mapping[str, Verb] = {
    "list_dags": lambda asked: dags_for(asked.control, asked.user),
    "show_dag": lambda asked: dag_for(asked.control, asked.user, asked.path["dag"]),
    "deploy": _deploy,
    "activate": _activate,
    "trigger": _trigger,
    "pause_source": lambda asked: pause_source(asked.control, asked.user, asked.path["dag"], asked.path["job"]),
    "resume_source": lambda asked: resume_source(asked.control, asked.user, asked.path["dag"], asked.path["job"]),
    "invalidate": _invalidate,
    "list_tasks": lambda asked: list_tasks(asked.control.pool, asked.org, asked.query),
    "failed_tasks": lambda asked: failed_tasks(asked.control.pool, asked.org),
    "show_task": lambda asked: show_task(asked.control.pool, asked.org, UUID(asked.path["task"])),
    "task_logs": lambda asked: read_logs(asked.control.pool, asked.org, UUID(asked.path["task"]), asked.query),
    "retry_task": lambda asked: retry_task(asked.control, asked.org, UUID(asked.path["task"])),
    "cancel_task": lambda asked: cancel_task(asked.control, asked.org, UUID(asked.path["task"]), asked.body.reason),
    "list_datasets": lambda asked: list_datasets(asked.control.pool, asked.user),
    "list_dataset_files": lambda asked: list_dataset_files(asked.control.pool, asked.user, asked.path["dataset"]),
    "show_dataset": lambda asked: show_dataset(asked.control.pool, asked.user, asked.path["dataset"]),
    "list_outbox": lambda asked: list_outbox(asked.control.pool, asked.org, asked.query),
    "retry_outbox": lambda asked: retry_outbox(asked.control, asked.org, asked.body.ids),
    "list_dead_batches": lambda asked: list_dead_batches(asked.control.pool, asked.org, asked.query),
    "replay_batch": lambda asked: replay_batch(asked.control, asked.org, UUID(asked.path["publish"]), asked.body.batch),
    "announce_bundle": lambda asked: announce_bundle(asked.control, asked.user, asked.body),
    "upload_bundle": lambda asked: upload_bundle(asked.control, asked.org, UUID(asked.path["bundle"]), asked.body),
    "finalize_bundle": lambda asked: finalize_bundle(asked.control, asked.org, UUID(asked.path["bundle"])),
    "list_bundles": lambda asked: list_bundles(asked.control.pool, asked.org, asked.query),
    "show_bundle": lambda asked: show_bundle(asked.control, asked.org, UUID(asked.path["bundle"])),
    "why": lambda asked: explain(asked.control.pool, asked.user, asked.query),
    "list_versions": lambda asked: list_versions(asked.control.pool, asked.org, asked.path["dag"]),
    "list_alerts": lambda asked: list_alerts(asked.control.pool, asked.org),
    "create_alert": lambda asked: create_alert(asked.control, asked.user, asked.body),
    "show_alert": lambda asked: show_alert(asked.control.pool, asked.org, asked.path["alert"]),
    "update_alert": lambda asked: update_alert(asked.control, asked.user, asked.path["alert"], asked.body),
    "delete_alert": lambda asked: delete_alert(asked.control, asked.user, asked.path["alert"]),
    "list_channels": lambda asked: list_channels(asked.control.pool, asked.org),
    "create_channel": lambda asked: create_channel(asked.control, asked.user, asked.body),
    "show_channel": lambda asked: show_channel(asked.control.pool, asked.org, asked.path["channel"]),
    "update_channel": lambda asked: update_channel(asked.control, asked.user, asked.path["channel"], asked.body),
    "delete_channel": lambda asked: delete_channel(asked.control, asked.user, asked.path["channel"]),
}
