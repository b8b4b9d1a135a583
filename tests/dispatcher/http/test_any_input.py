"""Whatever is sent to the Dispatcher's listeners, by their description or against it, with good tokens, bad or none.

No answer is a fault of ours, and every answer is one that the description names.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, reject, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

from tests.support.dispatcher.control import control_for
from tests.support.dispatcher.listeners import WORKER, Listeners, opened, settings_in
from tests.support.identity.service_tokens import TOKENS, as_service
from tests.support.loop_thread import LoopThread
from tracelake.dispatcher.http.internal_routes import internal_api
from tracelake.dispatcher.http.openapi import document
from tracelake.dispatcher.http.task_routes import task_api
from tracelake.wire.service.calls import SERVICE_CALLS, SERVICES

CHECKS = [status_code_conformance, response_schema_conformance]
WHO = ("good", "good", "good", "bad", "none")
TASK_EXAMPLES, INTERNAL_EXAMPLES = 120, 120


@dataclass(frozen=True)
class At:
    listeners: Listeners
    ca: str
    do: Callable[[Coroutine[Any, Any, Any]], Any]

    def claim(self) -> dict[str, Any]:
        found: dict[str, Any] = self.do(self.listeners.claim())
        return found


@pytest.fixture
def at(state_db: str, queue_db: str, tmp_path: Path) -> Iterator[At]:
    loop, stack = LoopThread(), AsyncExitStack()

    async def start() -> At:
        settings = settings_in(tmp_path)
        control = await stack.enter_async_context(control_for(state_db, queue_db, tmp_path))
        listeners = await stack.enter_async_context(opened(control, settings))
        return At(listeners, str(settings.tls.ca), loop.do)

    try:
        yield loop.do(start())
    finally:
        loop.do(stack.aclose())
        loop.close()


def operations_of(listener: str) -> dict[str, Any]:
    schema: Any = schemathesis.openapi.from_dict(document(listener))  # type: ignore[arg-type]
    return {item.label: item for item in (found.ok() for found in schema.get_all_operations())}


def answered(at: At, listener: str, case: Any, headers: dict[str, str]) -> int:
    """The status, which is one that the description names."""
    answer = case.call(
        base_url=str(getattr(at.listeners, listener).base_url).rstrip("/"), headers=headers, verify=at.ca
    )
    assert answer.status_code < 500, (case, answer.text)
    if answer.status_code not in {405, 406, 415}:  # answered by every listener before any route
        case.validate_response(answer, checks=CHECKS)
    status: int = answer.status_code
    return status


def fuzzed(at: At, listener: str, examples: int, prepare: Callable[[Any, str, bool], dict[str, str]]) -> None:
    """`prepare(case, who, aimed)` gives the headers of that caller, and aims the case at what is there."""
    operations = operations_of(listener)

    @given(data=st.data())
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def never_fails(data: st.DataObject) -> None:
        operation = operations[data.draw(st.sampled_from(sorted(operations)))]
        try:
            case = data.draw(operation.as_strategy(generation_mode=data.draw(st.sampled_from(GenerationMode))))
        except Unsatisfiable:
            reject()
        headers = prepare(case, data.draw(st.sampled_from(WHO)), data.draw(st.booleans()))
        answered(at, listener, case, headers)

    never_fails()


def test_no_input_makes_the_task_api_fail(at: At) -> None:
    def prepare(case: Any, who: str, aimed: bool) -> dict[str, str]:
        claimed = at.claim()
        if isinstance(case.body, dict) and aimed:
            fence = {name: claimed[name] for name in ("attempt", "lease_token")}
            case.body = {**case.body, "task_id": claimed["task"]["task_id"], **fence}
            aim(case.body, claimed["task"]["outputs"][0])
        tokens = {"good": claimed["capability_token"], "bad": TOKENS["worker"]}
        case.headers = None  # a made-up token is one more that is refused: the others come further
        return {"X-Trace-Task-Capability": tokens[who]} if who in tokens else {}

    beat = operations_of("task")["POST /v1/task/heartbeat"]
    for who, body, status in (("good", {}, 200), ("good", {"progress": 1}, 400), ("bad", {}, 401), ("none", {}, 401)):
        case = beat.Case(body=body, media_type="application/json")
        assert answered(at, "task", case, prepare(case, who, True)) == status  # noqa: FBT003 - as it is drawn
    fuzzed(at, "task", TASK_EXAMPLES, prepare)


def aim(body: dict[str, Any], output: dict[str, Any]) -> None:
    """Points every event at the task's own output, so that the request reaches the database."""
    for name in ("events", "invalidations", "outputs", "datasets_published"):
        for item in body.get(name) or [] if isinstance(body.get(name), list) else []:
            if isinstance(item, dict):
                item |= {name: output[name] for name in ("dataset_uuid", "dataset_version")}


def service_of(case: Any) -> str:
    """The token of a service that may make the call."""
    call = SERVICE_CALLS["dispatcher", case.method.upper(), case.operation.path]
    return next((TOKENS[service] for service in SERVICES if service in call.services), "none is needed")


def test_no_input_makes_the_internal_api_fail(at: At) -> None:
    user = at.do(at.listeners.control.pool.fetchval("SELECT external_id FROM users LIMIT 1"))

    def prepare(case: Any, who: str, aimed: bool) -> dict[str, str]:
        if aimed:
            known = {"dag": "chain", "job": "first", "dataset": str(at.listeners.chain.datasets["first"])}
            known["task"] = at.claim()["task"]["task_id"]
            made_up = ("publish", "bundle", "delivery", "backfill", "request", "release", "user")
            known |= {name: str(uuid4()) for name in made_up}
            known |= {"alert": "whales", "channel": "ops", "role": "finance", "org": "acme", "token": "robot"}
            known |= {"service_token": str(uuid4()), "kind": "job", "secret": "api_key", "queue": "buffer"}
            case.path_parameters = {name: known[name] for name in case.path_parameters or {}}
        tokens = {"good": service_of(case), "bad": "invalid"}
        case.headers = None
        named = {"X-Trace-User": quote(user, safe="")} if aimed else {}
        return named | ({"X-Trace-Worker-Token": tokens[who]} if who in tokens else {})

    at.listeners.control.after_commit.stops.close()  # a made-up mark may be a real one: do not wait
    listed = operations_of("internal")["GET /internal/v1/tasks"]
    for who, parameters, status in (("good", {}, 200), ("good", {"limit": "x"}, 400), ("bad", {}, 401)):
        case = listed.Case(query=parameters)
        assert answered(at, "internal", case, prepare(case, who, True)) == status  # noqa: FBT003 - as it is drawn
    fuzzed(at, "internal", INTERNAL_EXAMPLES, prepare)


def test_a_wait_for_stops_after_what_is_no_mark_is_refused_at_once(at: At) -> None:
    for mark in ("\x95", "nonsense", "-", "0123abcd-", "0123abcd--1", "0123abcd-1\n", "0123abcd-\u0663"):
        answer = at.do(at.listeners.internal.get("/internal/task-stops", params={"after": mark}, headers=WORKER))
        assert answer.status_code == 400, mark
        assert answer.json()["error"]["where"] == "query after"


def test_the_openapi_document_is_served_to_authorised_callers_and_names_every_route(at: At) -> None:
    path = "/internal/openapi.json"
    assert at.do(at.listeners.internal.get(path)).status_code == 401
    assert at.do(at.listeners.task.get(path, headers=WORKER)).status_code == 404
    served = at.do(at.listeners.internal.get(path, headers=as_service("monitor"))).json()
    assert served == document()
    described = {f"{method.upper()} {path}" for path, verbs in served["paths"].items() for method in verbs}
    frame = {"/healthz", "/readyz", "/metrics", "/internal/openapi.json"}  # the same at other listeners, or text
    routes = set(_routes(at)) - frame
    assert {path for _, _, path in (item.partition(" ") for item in described)} == routes


def _routes(at: At) -> Iterator[str]:
    nothing: Any = None
    for app in (task_api(at.listeners.control, nothing), internal_api(at.listeners.control)):
        for route in app.routes:
            yield route.path  # type: ignore[attr-defined]
