"""Whatever is sent to the user API by its own description, or against it: no answer is a fault of ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, reject, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode

from tests.support.loop_thread import LoopThread
from tests.support.systems.gateway import DAG, System, system
from tests.support.tls import tls_in
from tracelake.gateway.process import public_api
from tracelake.runtime.listeners import Listener, open_listeners
from tracelake.wire.calls.user_calls import CALLS
from tracelake.wire.client import DispatcherClient

KNOWN = {
    "org": "acme",
    "dag": "shop",
    "job": "fetch",
    "dataset": "shop_orders",
    "alert": "whales",
    "channel": "ops",
    "role": "finance",
    "token": "robot",
    "kind": "job",
    "secret": "api_key",
    "queue": "buffer",
} | {
    name: str(uuid4())
    for name in ("task", "publish", "bundle", "delivery", "backfill", "request", "release", "user", "service_token")
}
"""So that half of the calls are about something that is there."""
NOT_POSSIBLE = (Unsatisfiable,)
"""A call without parameters cannot be sent wrongly."""
EXAMPLES = 10
"""For each route; a short look each time, as the seed differs."""


@pytest.fixture
def at(state_db: str, queue_db: str, tmp_path: Path) -> Iterator[tuple[str, str, str]]:
    """Address, CA and an admin's token of a Gateway with a DAG behind it."""
    loop, stack = LoopThread(), AsyncExitStack()

    async def opened() -> tuple[str, str, str]:
        trace: System = await stack.enter_async_context(system(state_db, queue_db, tmp_path))
        await trace.deploy("shop", DAG)
        tls = tls_in(tmp_path / "tls")
        service = Listener("gateway", "127.0.0.1", 0, public_api(DispatcherClient(trace.inside), trace.identity))
        listeners = open_listeners([service], tls)
        return (await stack.enter_async_context(listeners))["gateway"], str(tls.ca), trace.token("acme|admin")

    try:
        yield loop.do(opened())
    finally:
        loop.do(stack.aclose())
        loop.close()


def test_no_input_makes_the_user_api_fail(at: tuple[str, str, str]) -> None:
    url, ca, token = at
    headers = {"authorization": f"Bearer {token}"}
    schema: Any = schemathesis.openapi.from_url(f"{url}/v1/openapi.json", verify=ca)
    operations = {item.label: item for item in (found.ok() for found in schema.get_all_operations())}
    del operations["POST /v1/query"]  # there is no Query service here; tests/query/test_api_fuzz.py tests it
    for call in CALLS.values():
        if call.service != "dispatcher":  # nor a delivery process: tests/delivery
            del operations[f"{call.method} /v1{call.path}"]

    @given(data=st.data())
    @settings(
        max_examples=EXAMPLES * len(operations),
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def never_fails(data: st.DataObject) -> None:
        operation = operations[data.draw(st.sampled_from(sorted(operations)))]
        mode = data.draw(st.sampled_from(GenerationMode))
        try:
            case = data.draw(operation.as_strategy(generation_mode=mode))
        except NOT_POSSIBLE:
            reject()
        if data.draw(st.booleans()):
            case.path_parameters = {name: KNOWN[name] for name in case.path_parameters or {}}
        answer = case.call(base_url=url, headers=headers, verify=ca)
        assert answer.status_code < 500, (case, answer.text)

    never_fails()
