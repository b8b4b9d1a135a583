"""Whatever is sent to the doors of the Query service by their own description, or against it, is no fault of ours."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode

from tests.query.house import House
from tests.walk.walking import TOKEN
from tracelake.query.openapi import document

pytestmark = pytest.mark.anyio
EXAMPLES = 30
QUERIES = ("SELECT 1 AS x", "SELECT value FROM orders LIMIT 2", "SELECT * FROM theirs", "nonsense")
"""So that some of the calls come as far as Spark."""


async def test_no_input_makes_a_door_of_the_query_service_fail(house: House) -> None:
    schema: Any = schemathesis.openapi.from_dict(document())
    operations = {item.label: item for item in (found.ok() for found in schema.get_all_operations())}
    listeners = {"POST /v1/query": house.query_internal, "POST /v1/task/query": house.task_api}
    assert set(listeners) == set(operations)
    await house.make("feed", 1400, 1401)
    token = (await house.claimed()).capability_token
    headers = {"X-Trace-Worker-Token": TOKEN, "X-Trace-User": "reader", "X-Trace-Task-Capability": token}

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
        answer = case.call(base_url=str(listeners[label].base_url), headers=headers, verify=str(house.rig.walk.ca))
        overran = (
            answer.status_code == 504 and answer.json()["error"]["code"] == "query_timeout"
        )  # a limit it asked for
        assert answer.status_code < 500 or overran, (case, answer.text)
        assert str(answer.status_code) in operations[label].definition.raw["responses"], answer.text

    await asyncio.to_thread(never_fails)
