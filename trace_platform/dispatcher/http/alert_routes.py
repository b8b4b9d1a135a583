"""What the delivery process asks of the Dispatcher."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from trace_platform.alert_contracts import TargetsRequest
from trace_platform.dispatcher.alert_targets import alert_targets
from trace_platform.dispatcher.control import Control
from trace_platform.dispatcher.http.auth import WorkerGate
from trace_platform.dispatcher.http.body import read
from trace_platform.doors import json_response


def alert_route(control: Control, gate: WorkerGate) -> Route:
    async def targets(request: Request) -> Response:
        await gate.require(request)
        return json_response(await alert_targets(control, await read(request, TargetsRequest)))

    return Route("/internal/alerts/targets", targets, methods=["POST"])
