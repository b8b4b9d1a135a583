"""Requests that match or violate the OpenAPI document of the Query service never cause a server error."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode

from tests.support.identity.service_tokens import as_gateway
from tests.support.systems.query import QuerySystem
from tracelake.query.openapi import document

pytestmark = pytest.mark.anyio
EXAMPLES = 30
QUERIES = ("SELECT 1 AS x", "SELECT value FROM orders LIMIT 2", "SELECT * FROM theirs", "nonsense")
"""So that some of the calls reach Spark."""


async def test_no_input_makes_a_listener_of_the_query_service_fail(system: QuerySystem) -> None:
    schema: Any = schemathesis.openapi.from_dict(document())
    operations = {item.label: item for item in (found.ok() for found in schema.get_all_operations())}
    listeners = {
        "POST /v1/query": system.query_internal,
        "GET /internal/v1/datasets/{dataset}/verify": system.query_internal,
        "GET /internal/v1/datasets/{dataset}/diff": system.query_internal,
        "POST /v1/task/query": system.task_api,
    }
    assert set(listeners) == set(operations)
    await system.add("feed")
    token = (await system.claimed()).capability_token
    headers = {**as_gateway("reader", "query"), "X-Trace-Task-Capability": token}

    @given(data=st.data())
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def never_fails(data: st.DataObject) -> None:
        label = data.draw(st.sampled_from(sorted(operations)))
        mode = data.draw(st.sampled_from(GenerationMode))
        case = data.draw(operations[label].as_strategy(generation_mode=mode))
        if isinstance(case.body, dict) and data.draw(st.booleans()):
            case.body["sql"] = data.draw(st.sampled_from(QUERIES))
        answer = case.call(
            base_url=str(listeners[label].base_url), headers=headers, verify=str(system.operators.walk.ca)
        )
        overran = (
            answer.status_code == 504 and answer.json()["error"]["code"] == "query_timeout"
        )  # a limit it asked for
        assert answer.status_code < 500 or overran, (case, answer.text)
        assert str(answer.status_code) in operations[label].definition.raw["responses"], answer.text

    await asyncio.to_thread(never_fails)
