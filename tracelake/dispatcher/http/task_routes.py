"""Step 1 of one event: the task API. `/v1/task/events` arrives; `auth.py` checks the capability.

Next: `events/accept.py`.
"""

from __future__ import annotations

import structlog
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tracelake.capability.verifier import Verifier
from tracelake.dispatcher.buffers.publish import publish_buffer
from tracelake.dispatcher.bundles.url import BundleUrls
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.datasets.list_task_files import list_files
from tracelake.dispatcher.events.accept import accept_events
from tracelake.dispatcher.http.auth import CAPABILITY, require_capability
from tracelake.dispatcher.http.completions import complete_several
from tracelake.dispatcher.http.log_context import about
from tracelake.dispatcher.tasks.renew_lease import Beat
from tracelake.dispatcher.tasks.store_logs import store_logs
from tracelake.runtime.crash_points import crash_point
from tracelake.runtime.listeners import json_response, listener_app
from tracelake.runtime.logs import is_debugging
from tracelake.runtime.request_middleware import address_of
from tracelake.store.db import OUTAGES, answers, unavailable
from tracelake.wire.calls.read_call import read_message
from tracelake.wire.internal.identity import CredentialsRequest
from tracelake.wire.task.buffers import BufferPublishRequest
from tracelake.wire.task.lifecycle import HeartbeatRequest, LogsRequest
from tracelake.wire.task.outputs import (
    MAX_COMPLETION_BYTES,
    CompleteBatchAnswer,
    CompleteBatchRequest,
    CompleteRequest,
    EventsRequest,
    FilesRequest,
)

log = structlog.get_logger()


def task_api(control: Control, verifier: Verifier) -> Starlette:
    renew, complete = control.renewer().batched(control.metrics), control.completer()
    outbox, objects, scratch = control.after_commit.outbox, control.objects, control.places.scratch_bucket
    credential_mint = control.credential_mint()

    async def heartbeat(request: Request) -> Response:
        body = await read_message(request, HeartbeatRequest)
        claims = await require_capability(request, verifier, body)
        async with about(control, claims):
            return json_response(await renew(Beat(body, claims)))

    async def completion(request: Request) -> Response:
        await verifier.verify(request.headers.get(CAPABILITY))  # before a large body is read
        body = await read_message(request, CompleteRequest, MAX_COMPLETION_BYTES)
        claims = await require_capability(request, verifier, body)
        async with about(control, claims):
            answer = await complete(body, claims)
            crash_point("complete_task.after_commit")
            if is_debugging():
                log.debug("completed", status=answer.status)
            return json_response(answer)

    async def completions(request: Request) -> Response:
        items = (await read_message(request, CompleteBatchRequest)).items
        outcomes = await complete_several(control, complete, verifier, items)
        crash_point("complete_batch.after_commit")
        return json_response(CompleteBatchAnswer(outcomes=outcomes))

    async def events(request: Request) -> Response:
        body = await read_message(request, EventsRequest)
        claims = await require_capability(request, verifier, body)
        async with about(control, claims):
            return json_response(await accept_events(control.hot, control.jobs, control.after_commit, body, claims))

    async def buffer(request: Request) -> Response:
        body = await read_message(request, BufferPublishRequest)
        claims = await require_capability(request, verifier, body)
        async with about(control, claims):
            return json_response(
                await publish_buffer(control.pool, outbox, body, claims, objects=objects, scratch_bucket=scratch)
            )

    async def logs(request: Request) -> Response:
        body = await read_message(request, LogsRequest)
        await require_capability(request, verifier, body)
        return json_response(await store_logs(control.hot, body))

    async def files(request: Request) -> Response:
        body = await read_message(request, FilesRequest)
        claims = await require_capability(request, verifier, body)
        return json_response(await list_files(control.pool, body, claims))

    async def credentials(request: Request) -> Response:
        body = await read_message(request, CredentialsRequest)
        claims = await require_capability(request, verifier, body)
        async with about(control, claims):
            return json_response(await credential_mint.mint(body, claims, address_of(request)))

    routes = [
        Route("/v1/task/heartbeat", heartbeat, methods=["POST"]),
        Route("/v1/task/complete", completion, methods=["POST"]),
        Route("/v1/task/complete-batch", completions, methods=["POST"]),
        Route("/v1/task/events", events, methods=["POST"]),
        Route("/v1/task/buffer-publish", buffer, methods=["POST"]),
        Route("/v1/task/logs", logs, methods=["POST"]),
        Route("/v1/task/files", files, methods=["POST"]),
        Route("/v1/task/credentials", credentials, methods=["POST"]),
        _bundle(control.bundle_urls()),
    ]
    return listener_app(routes, lambda: answers(control.pool), OUTAGES, lambda away: unavailable(away, control.home))


def _bundle(urls: BundleUrls) -> Route:
    async def bundle(request: Request) -> Response:
        # No capability: the URL itself is signed for this one object.
        found = await urls.read(request.path_params["sha256"], request.query_params)
        return Response(found, media_type="application/zip", headers={"cache-control": "no-store"})

    return Route("/v1/udf/bundle/{sha256}", bundle, methods=["GET"])
