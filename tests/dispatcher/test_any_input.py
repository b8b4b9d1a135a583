"""Whatever is sent to the Dispatcher's doors, by their own description or against it, with good tokens, bad or none.

No answer is a fault of ours, and every answer is one that the description names.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote
from uuid import uuid4

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, reject, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

from tests.dispatcher.support import control_for
from tests.dispatcher.test_doors import WORKER, Doors, opened
from trace_platform.dispatcher.http.internal_routes import internal_door
from trace_platform.dispatcher.http.openapi import document
from trace_platform.dispatcher.http.task_routes import task_door
from trace_platform.lite.certificates import ensure_certificates
from trace_platform.settings import TlsSettings, load_settings

T = TypeVar("T")
CHECKS = [status_code_conformance, response_schema_conformance]
WHO = ("good", "good", "good", "bad", "none")
TASK_EXAMPLES, INTERNAL_EXAMPLES = 120, 120


class Loop:
    """A loop of its own thread: the generated calls come from this one."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@dataclass(frozen=True)
class At:
    doors: Doors
    ca: str
    do: Callable[[Coroutine[Any, Any, Any]], Any]

    def claim(self) -> dict[str, Any]:
        found: dict[str, Any] = self.do(self.doors.claim())
        return found


@pytest.fixture
def at(state_db: str, queue_db: str, tmp_path: Path) -> Iterator[At]:
    loop, stack = Loop(), AsyncExitStack()

    async def start() -> At:
        files = ensure_certificates(tmp_path / "tls", datetime.now(UTC))
        tls = TlsSettings(ca=files.ca, cert=files.cert, key=files.key)
        known = load_settings({}, home=tmp_path).model_copy(update={"tls": tls})
        control = await stack.enter_async_context(control_for(state_db, queue_db, tmp_path))
        context = ssl.create_default_context(cafile=files.ca)
        doors = await stack.enter_async_context(opened(control, known, context))
        return At(doors, str(files.ca), loop.do)

    try:
        yield loop.do(start())
    finally:
        loop.do(stack.aclose())
        loop.close()


def fuzzed(at: At, door: str, examples: int, prepare: Callable[[Any, st.DataObject], dict[str, str]]) -> None:
    schema: Any = schemathesis.openapi.from_dict(document(door))  # type: ignore[arg-type]
    operations = {one.label: one for one in (found.ok() for found in schema.get_all_operations())}
    url = str(getattr(at.doors, door).base_url).rstrip("/")

    seen = set[int]()

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
        headers = prepare(case, data)
        answer = case.call(base_url=url, headers=headers, verify=at.ca)
        seen.add(answer.status_code)
        assert answer.status_code < 500, (case, answer.text)
        if answer.status_code not in {405, 406, 415}:  # said by the frame of every door, before any route
            case.validate_response(answer, checks=CHECKS)

    never_fails()
    assert seen >= {200, 400, 401}  # some came through


def test_no_input_makes_the_task_door_fail(at: At) -> None:
    def prepare(case: Any, data: st.DataObject) -> dict[str, str]:
        claimed = at.claim()
        if isinstance(case.body, dict) and data.draw(st.booleans()):
            fence = {name: claimed[name] for name in ("attempt", "lease_token")}
            case.body = {**case.body, "task_id": claimed["task"]["task_id"], **fence}
            aim(case.body, claimed["task"]["outputs"][0])
        tokens = {"good": claimed["capability_token"], "bad": WORKER["X-Trace-Worker-Token"]}
        who = tokens.get(data.draw(st.sampled_from(WHO)))
        case.headers = None  # a made-up token is one more that is refused: the others come further
        return {"X-Trace-Task-Capability": who} if who else {}

    fuzzed(at, "task", TASK_EXAMPLES, prepare)


def aim(body: dict[str, Any], output: dict[str, Any]) -> None:
    """What is told is told of the task's own output, so that it comes as far as the database."""
    for name in ("events", "invalidations", "outputs", "datasets_published"):
        for one in body.get(name) or [] if isinstance(body.get(name), list) else []:
            if isinstance(one, dict):
                one |= {name: output[name] for name in ("dataset_uuid", "dataset_version")}


def test_no_input_makes_the_internal_door_fail(at: At) -> None:
    user = at.do(at.doors.control.pool.fetchval("SELECT external_id FROM users LIMIT 1"))

    def prepare(case: Any, data: st.DataObject) -> dict[str, str]:
        if data.draw(st.booleans()):
            known = {"dag": "chain", "job": "first", "dataset": str(at.doors.chain.datasets["first"])}
            known["task"] = at.claim()["task"]["task_id"]
            known["publish"] = known["bundle"] = str(uuid4())
            known |= {"alert": "whales", "channel": "ops"}
            case.path_parameters = {name: known[name] for name in case.path_parameters or {}}
        tokens = {"good": WORKER["X-Trace-Worker-Token"], "bad": "nobody's"}
        who = tokens.get(data.draw(st.sampled_from(WHO)))
        case.headers = None
        named = {"X-Trace-User": quote(user, safe="")} if data.draw(st.booleans()) else {}
        return named | ({"X-Trace-Worker-Token": who} if who else {})

    fuzzed(at, "internal", INTERNAL_EXAMPLES, prepare)


def test_the_description_is_served_to_who_may_have_it_and_names_every_route(at: At) -> None:
    path = "/internal/openapi.json"
    assert at.do(at.doors.internal.get(path)).status_code == 401
    assert at.do(at.doors.task.get(path, headers=WORKER)).status_code == 404
    served = at.do(at.doors.internal.get(path, headers=WORKER)).json()
    assert served == document()
    described = {f"{method.upper()} {path}" for path, verbs in served["paths"].items() for method in verbs}
    frame = {"/healthz", "/readyz", "/metrics", "/internal/openapi.json"}  # the same at other doors, or text
    routes = set(_routes(at)) - frame
    assert {path for _, _, path in (one.partition(" ") for one in described)} == routes


def _routes(at: At) -> Iterator[str]:
    nothing: Any = None
    for app in (task_door(at.doors.control, nothing), internal_door(at.doors.control)):
        for route in app.routes:
            yield route.path  # type: ignore[attr-defined]
