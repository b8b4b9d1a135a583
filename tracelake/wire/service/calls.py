"""Which service may make which call: the one table that listeners decide by, and that the documentation shows.

A call that is not listed is not served: a listener refuses to start with a route that has no row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from tracelake.wire.calls.call import Service
from tracelake.wire.calls.user_calls import CALLS

SERVICES: Final[Mapping[Service, str]] = {
    "worker": "`trace worker`",
    "runner": "`trace runner`",
    "sink": "`trace sink`",
    "query": "`trace query`",
    "gateway": "`trace gateway`",
    "scheduler": "`trace scheduler`",
    "delivery": "`trace delivery`",
    "supervisor": "`trace up`, for itself",
    "monitor": "Prometheus, and people who read the API's description",
}
CLAIMING: Final[frozenset[Service]] = frozenset({"worker", "runner"})
"""Their tokens name the runtimes whose tasks they may claim."""
DISPATCHER: Final = "dispatcher"
"""Calls the runner, with a secret that only those two have (`udf.invoke_token`); it calls no other listener."""

ListenerName = Literal["dispatcher", "query", "delivery", "runner"]


@dataclass(frozen=True)
class ServiceCall:
    """A route of an internal listener, and who may call it."""

    listener: ListenerName
    method: str
    path: str
    services: frozenset[str]
    """Empty: needs no token."""
    proven: frozenset[str] = frozenset()
    """Services that must prove that a Gateway asked them to act for the user they name."""


def _call(listener: ListenerName, route: str, services: str, proven: str = "") -> ServiceCall:
    method, _, path = route.partition(" ")
    return ServiceCall(listener, method, path, frozenset(services.split()), frozenset(proven.split()))


_FOR_QUERIES: Final = frozenset({"show_dataset", "list_ledger", "show_release"})
"""Calls of users that the Query service makes too, for the user whose call it answers."""


def _user_calls() -> list[ServiceCall]:
    return [
        _call(
            call.service,
            f"{call.method} /internal/v1{call.path}",
            "gateway query" if call.name in _FOR_QUERIES else "gateway",
            "query" if call.name in _FOR_QUERIES else "",
        )
        for call in CALLS.values()
    ]


SERVICE_CALLS: Final[Mapping[tuple[str, str, str], ServiceCall]] = {
    (call.listener, call.method, call.path): call
    for call in (
        _call("dispatcher", "POST /internal/task-claim", "worker runner"),
        _call("dispatcher", "POST /internal/task-claim-batch", "worker runner"),
        _call("dispatcher", "GET /internal/task-fetch", "worker runner"),
        _call("dispatcher", "GET /internal/task-stops", "worker runner"),
        _call("dispatcher", "POST /internal/rpc-shares", "worker"),
        _call("dispatcher", "POST /internal/buffer/records", "sink"),
        _call("dispatcher", "POST /internal/buffer/settle", "sink"),
        _call("dispatcher", "POST /internal/alerts/failures", "sink"),
        _call("dispatcher", "POST /internal/alerts/targets", "delivery"),
        _call("dispatcher", "POST /internal/query/relations", "query", "query"),
        _call("dispatcher", "POST /internal/query/audit", "query"),
        _call("dispatcher", "POST /internal/query/comparisons/take", "query"),
        _call("dispatcher", "GET /internal/query/comparisons/changes", "query"),
        _call("dispatcher", "POST /internal/query/comparisons/report", "query"),
        _call("dispatcher", "GET /internal/user", "gateway query delivery", "query delivery"),
        _call("dispatcher", "POST /internal/audit/begin", "query delivery", "query delivery"),
        _call("dispatcher", "POST /internal/audit/end", "query delivery", "query delivery"),
        _call("dispatcher", "POST /internal/user-token", "gateway"),
        _call("dispatcher", "POST /internal/user-login", "gateway"),
        _call("dispatcher", "POST /internal/refusals", "gateway"),
        _call("dispatcher", "POST /internal/hooks", "gateway"),
        _call("dispatcher", "POST /internal/service-token", "query delivery"),
        _call("dispatcher", "POST /internal/schedules/fire", "scheduler"),
        _call("dispatcher", "GET /internal/schedules/changes", "scheduler"),
        _call("dispatcher", "POST /internal/sources/drain", "supervisor"),
        _call("dispatcher", "GET /internal/worker-load", "supervisor"),
        _call("dispatcher", "GET /internal/openapi.json", "monitor"),
        _call("dispatcher", "GET /metrics", "monitor"),
        _call("dispatcher", "GET /internal/jwks/task", ""),
        _call("query", "POST /v1/query", "gateway"),
        _call("query", "GET /internal/openapi.json", "monitor"),
        _call("query", "GET /metrics", "monitor"),
        _call("delivery", "GET /metrics", "monitor"),
        _call("runner", "POST /2015-03-31/functions/udf/invocations", DISPATCHER),
        _call("runner", "GET /places", DISPATCHER),
        *_user_calls(),
    )
}
