"""What the delivery process and the sink ask of the Dispatcher about alerts."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from trace_platform.alert_contracts import FailuresRequest, TargetsRequest
from trace_platform.dispatcher.alert_targets import alert_targets
from trace_platform.dispatcher.control import Control
from trace_platform.dispatcher.failure_alerts import failure_alerts
from trace_platform.dispatcher.http.auth import WorkerGate
from trace_platform.dispatcher.http.body import read
from trace_platform.doors import json_response


def alert_routes(control: Control, gate: WorkerGate) -> list[Route]:
    async def targets(request: Request) -> Response:
        await gate.require(request)
        return json_response(await alert_targets(control, await read(request, TargetsRequest)))

    async def failures(request: Request) -> Response:
        await gate.require(request)
        return json_response(await failure_alerts(control, await read(request, FailuresRequest)))

    return [
        Route("/internal/alerts/targets", targets, methods=["POST"]),
        Route("/internal/alerts/failures", failures, methods=["POST"]),
    ]
