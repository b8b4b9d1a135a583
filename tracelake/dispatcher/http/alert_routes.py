"""What the delivery process and the sink ask of the Dispatcher about alerts."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tracelake.dispatcher.alerts.for_delivery import alert_targets, failure_alerts
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.http.auth import WorkerGate
from tracelake.runtime.listeners import json_response
from tracelake.wire.alert_messages import FailuresRequest, TargetsRequest
from tracelake.wire.read_call import read_message


def alert_routes(control: Control, gate: WorkerGate) -> list[Route]:
    async def targets(request: Request) -> Response:
        await gate.require(request)
        return json_response(await alert_targets(control.pool, await read_message(request, TargetsRequest)))

    async def failures(request: Request) -> Response:
        await gate.require(request)
        return json_response(
            await failure_alerts(control.pool, control.failure_alert, await read_message(request, FailuresRequest))
        )

    return [
        Route("/internal/alerts/targets", targets, methods=["POST"]),
        Route("/internal/alerts/failures", failures, methods=["POST"]),
    ]
