"""The user API from the public listener to the database: which role may do what, and only within its organisation."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast
from uuid import uuid4

import httpx
import pytest

from tests.support.dispatcher.job_chain import drained
from tests.support.identity.service_tokens import as_service
from tests.support.systems.gateway import ADMIN, DAG, READER, RIVAL, WRITER, System, deployed, over, triggered
from tracelake.dispatcher.http.internal_routes import internal_api
from tracelake.gateway.process import public_api
from tracelake.wire.calls.user_calls import CALLS, USER
from tracelake.wire.client import DispatcherClient
from tracelake.wire.service.headers import SERVICE_TOKEN

pytestmark = pytest.mark.anyio

A_TASK = str(uuid4())


async def test_a_dag_goes_from_its_yaml_to_a_task_that_can_be_explained(trace: System) -> None:
    version = await deployed(trace)
    again = await trace.got(WRITER, "POST", "/v1/dags/shop/versions", json={"yaml": DAG})
    assert (again["dag_version_id"], again["created"]) == (version, False)
    (row,) = (await trace.got(READER, "GET", "/v1/dags"))["dags"]
    assert (row["name"], row["active_version"], row["jobs"]) == ("shop", version, 2)
    shown = await trace.got(READER, "GET", "/v1/dags/shop")
    assert (shown["yaml"], [job["name"] for job in shown["jobs"]]) == (DAG, ["clean", "fetch"])
    assert shown["versions"][0]["deployed_by"] == WRITER

    task = await triggered(trace)
    detail = await trace.got(READER, "GET", f"/v1/tasks/{task}")
    assert (detail["job"], detail["partitions"], detail["event"]["origin"]) == ("clean", ["0-9"], "manual")
    explanation = await trace.got(READER, "GET", f"/v1/why?task={task}")
    assert explanation["stopped"]["rule"] == "waits_for_worker"
    assert await trace.got(READER, "GET", "/v1/why?dataset=shop_clean&partition=0-9") == explanation | {
        "subject": "shop_clean 0-9"
    }
    assert [got["name"] for got in (await trace.got(READER, "GET", "/v1/datasets"))["datasets"]] == [
        "shop_clean",
        "shop_orders",
    ]


async def test_a_bad_dag_is_refused_with_every_problem_and_its_place(trace: System) -> None:
    bad = DAG.replace("job: fetch}}", "job: fetcher}}").replace(
        "operator: noop\n    source", "operator: nop\n    source"
    )
    answer = await trace.ask(WRITER, "POST", "/v1/dags/shop/versions", json={"yaml": bad})
    assert answer.status_code == 400
    problems = answer.json()["error"]["problems"]
    assert {(item["line"], item["code"]) for item in problems} == {(5, "unknown_operator"), (9, "unknown_job")}
    assert (await trace.got(READER, "GET", "/v1/dags"))["dags"] == []


@pytest.mark.parametrize(
    "abi", ["[" * 5_000, '[{"type": "event", "name": "A", "inputs": [{"type": "uint8[' + "9" * 5_000 + ']"}]}]']
)
async def test_an_unreadable_abi_is_refused_with_its_place_and_is_no_server_error(trace: System, abi: str) -> None:
    config = f"    config: {{events: [a], abi: {json.dumps(abi)}}}\n"
    bad = DAG.replace("    operator: work\n", "    operator: evm_decode\n" + config)
    answer = await trace.ask(WRITER, "POST", "/v1/dags/shop/versions", json={"yaml": bad})
    assert answer.status_code == 400
    (problem,) = answer.json()["error"]["problems"]
    assert (problem["line"], problem["field"], problem["code"]) == (9, "jobs[1].config.abi", "invalid_abi")


async def test_the_yaml_must_be_of_the_dag_in_the_path_and_nothing_is_deployed_otherwise(trace: System) -> None:
    assert await trace.refused(WRITER, "POST", "/v1/dags/other/versions", content=DAG) == (400, "invalid_request")
    assert (await trace.got(READER, "GET", "/v1/dags"))["dags"] == []


async def test_a_repeated_trigger_makes_no_second_event(trace: System) -> None:
    await deployed(trace)
    body = {"cursor": 5, "request_id": str(uuid4())}
    path = "/v1/dags/shop/jobs/fetch/trigger"
    first, again = [await trace.got(WRITER, "POST", path, json=body) for _ in range(2)]
    assert (first["created"], again) == (True, first | {"created": False})
    assert await trace.control.pool.fetchval("SELECT count(*) FROM events") == 1
    assert await trace.refused(WRITER, "POST", path, json=body | {"cursor": 6}) == (409, "conflict")


async def test_a_task_is_retried_and_canceled_through_the_api(trace: System) -> None:
    await deployed(trace)
    task = await triggered(trace)
    assert await trace.refused(WRITER, "POST", f"/v1/tasks/{task}/retry") == (409, "conflict")
    assert await trace.refused(WRITER, "POST", f"/v1/tasks/{task}/cancel", json={}) == (400, "invalid_request")
    done = await trace.got(WRITER, "POST", f"/v1/tasks/{task}/cancel", json={"reason": "wrong range"})
    assert done == {"task_id": task, "changed": True}
    (row,) = (await trace.got(READER, "GET", "/v1/tasks?status=Canceled"))["tasks"]
    assert row["reason"] == "wrong range"


async def test_an_admin_invalidates_a_range_and_its_readers_do_it_again(trace: System) -> None:
    await deployed(trace)
    await triggered(trace)
    body = {"start": 0, "end": 4, "reason": "a reorg", "request_id": str(uuid4())}
    assert (await trace.got(ADMIN, "POST", "/v1/datasets/shop_orders/invalidate", json=body))["created"]
    assert not (await trace.got(ADMIN, "POST", "/v1/datasets/shop_orders/invalidate", json=body))["created"]
    await drained(trace.control)
    newest = (await trace.got(READER, "GET", "/v1/tasks"))["tasks"][0]
    assert newest["partitions"] == ["0-4"]
    explanation = await trace.got(READER, "GET", f"/v1/why?task={newest['id']}")
    assert explanation["steps"][0]["kind"] == "invalidation"
    assert "a reorg" in explanation["steps"][0]["sentence"]


async def test_a_role_taken_away_is_gone_with_the_next_call(trace: System) -> None:
    await trace.got(ADMIN, "GET", "/v1/outbox")
    await trace.control.pool.execute("UPDATE users SET role = 'reader' WHERE external_id = $1", ADMIN)
    assert await trace.refused(ADMIN, "GET", "/v1/outbox") == (403, "forbidden")


async def test_resources_of_another_organisation_are_not_found(trace: System) -> None:
    version = await deployed(trace)
    task = await triggered(trace)
    dataset = (await trace.got(READER, "GET", "/v1/datasets"))["datasets"][0]["dataset_uuid"]
    range_ = {"start": 0, "end": 1, "reason": "x"}
    requests: list[tuple[str, str, Any]] = [
        ("GET", "/v1/dags/shop", None),
        ("GET", "/v1/dags/shop/versions", None),
        ("PUT", "/v1/dags/shop/active", {"dag_version_id": version}),
        ("POST", "/v1/dags/shop/jobs/fetch/trigger", {"cursor": 1}),
        ("GET", f"/v1/tasks/{task}", None),
        ("POST", f"/v1/tasks/{task}/retry", None),
        ("POST", f"/v1/tasks/{task}/cancel", {"reason": "x"}),
        ("GET", f"/v1/datasets/{dataset}", None),
        ("GET", "/v1/datasets/shop_orders", None),
        ("POST", f"/v1/datasets/{dataset}/invalidate", range_),
        ("POST", "/v1/datasets/shop_orders/invalidate", range_),
        ("GET", f"/v1/why?task={task}", None),
        ("GET", "/v1/why?dataset=shop_orders&partition=0-9", None),
    ]
    for method, path, body in requests:
        assert await trace.refused(RIVAL, method, path, json=body or {}) == (404, "not_found"), path
    for path, rows in (
        ("/v1/dags", "dags"),
        ("/v1/tasks", "tasks"),
        ("/v1/datasets", "datasets"),
        ("/v1/outbox", "rows"),
    ):
        assert (await trace.got(RIVAL, "GET", path))[rows] == []
    assert (await trace.got(RIVAL, "POST", "/v1/outbox/retry"))["retried"] == []
    assert await trace.control.pool.fetchval("SELECT status::text FROM tasks") == "Queued"


async def test_a_request_cannot_choose_its_user_organisation_or_role(trace: System) -> None:
    await deployed(trace)
    forged = {USER: ADMIN, "x-trace-org": "acme", "x-trace-role": "admin", **as_service("gateway")}
    assert (await trace.got("rival|reader", "GET", "/v1/dags", headers=forged))["dags"] == []
    assert await trace.refused("rival|reader", "GET", "/v1/outbox", headers=forged) == (403, "forbidden")
    assert await trace.refused(ADMIN, "GET", "/v1/tasks?org_id=x") == (400, "invalid_request")


@pytest.mark.parametrize(
    "path",
    [
        "/v1/task/heartbeat",
        "/v1/task/complete",
        "/v1/task/events",
        "/internal/task-claim",
        "/internal/v1/tasks",
        "/internal/user",
        "/v1/dags/..%2f..%2finternal/task-fetch",
        "/v1/dags/%2e%2e",
        "/v1/tasks/..",
        "/v1/tasks/%00",
        "/v1/datasets/a%00b",
        "/v1/datasets/%2e%2e%2f%2e%2e%2fuser%3fexternal_id=x",
        "/v1//dags",
        "/V1/dags",
        "/v1/dags/",
    ],
)
async def test_the_public_listener_serves_the_user_api_only(trace: System, path: str) -> None:
    for method in ("GET", "POST"):
        status, _ = await trace.refused(ADMIN, method, path)
        assert status in {404, 405}


async def test_bodies_and_parameters_are_refused_with_their_place(trace: System) -> None:
    cases: list[tuple[str, str, bytes, str]] = [
        ("GET", "/v1/tasks?limit=0", b"", "query limit"),
        ("GET", "/v1/tasks?limit=x", b"", "query limit"),
        ("GET", "/v1/tasks?status=Done", b"", "query status"),
        ("GET", "/v1/tasks?dag=a%00b", b"", "query dag"),
        ("GET", "/v1/tasks?limit=1&limit=2", b"", "query"),
        ("GET", "/v1/why?dataset=a%00&partition=1", b"", "query dataset"),
        ("POST", f"/v1/tasks/{A_TASK}/cancel", b'{"reason": ""}', "/reason"),
        ("POST", f"/v1/tasks/{A_TASK}/cancel", b'{"reason": "a\\u0000b"}', ""),
        ("POST", f"/v1/tasks/{A_TASK}/cancel", b'{"reason": "x", "org": 1}', "/org"),
        ("POST", f"/v1/tasks/{A_TASK}/cancel", b'{"reason": "x", "reason": "y"}', ""),
        ("POST", f"/v1/tasks/{A_TASK}/cancel", b'{"reason": "x", "\\u0072eason": "x"}', ""),
        ("POST", f"/v1/tasks/{A_TASK}/retry", b'{"x": 1}', ""),
        ("POST", "/v1/outbox/retry", b'{"ids": [-1]}', "/ids/0"),
        ("POST", "/v1/outbox/retry", b"[" * 100_000, ""),
        ("POST", "/v1/dags/shop/jobs/fetch/trigger", b'{"cursor": 9223372036854775808}', "/cursor"),
        ("POST", "/v1/dags/shop/jobs/fetch/trigger", b'{"partition": "a/b"}', "/partition"),
        ("POST", "/v1/datasets/shop_orders/invalidate", b'{"start": 5, "end": 4, "reason": "x"}', "/start"),
        ("POST", "/v1/dags/shop/versions", b"x" * (1024 * 1024 + 1), ""),
    ]
    for method, path, body, where in cases:
        answer = await trace.ask(ADMIN, method, path, content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 400, (path, answer.text)
        assert answer.json()["error"]["where"] == where, path
    broken = await trace.ask(
        ADMIN, "POST", "/v1/dags/shop/versions", content=b"\xff", headers={"content-type": "a/yaml"}
    )
    assert broken.status_code == 400


async def test_a_dispatcher_that_is_away_or_refuses_the_gateway_is_a_retryable_503(trace: System) -> None:
    without_database = replace(trace.control, pool=cast("Any", None))  # a fault of ours, as the Gateway sees it
    upstreams = [
        httpx.AsyncClient(base_url="https://127.0.0.1:1", trust_env=False),
        over(internal_api(trace.control), {SERVICE_TOKEN: "revoked"}),
        over(internal_api(without_database), as_service("gateway")),
    ]
    for upstream in upstreams:
        async with upstream, over(public_api(DispatcherClient(upstream), trace.identity)) as gateway:
            headers = {"authorization": f"Bearer {trace.token(ADMIN)}"}
            answer = await gateway.get("/v1/tasks", headers=headers)
        assert answer.status_code == 503, answer.text
        assert answer.json()["error"]["retryable"]
        assert "Traceback" not in answer.text


async def test_a_database_that_is_away_is_a_retryable_503(trace: System) -> None:
    trace.control.pool.terminate()
    answer = await trace.ask(ADMIN, "GET", "/v1/tasks")
    assert answer.status_code == 503
    assert answer.json()["error"]["retryable"]


async def test_the_openapi_document_names_every_call_with_its_types(trace: System) -> None:
    document = (await trace.gateway.get("/v1/openapi.json")).json()
    schemas = document["components"]["schemas"]
    for call in CALLS.values():
        operation = document["paths"][f"/v1{call.path}"][call.method.lower()]
        assert operation["operationId"] == call.name
        assert call.answer.__name__ in schemas
        assert ("requestBody" in operation) == (call.body is not None or call.takes_bytes is not None)
    text = json.dumps(document)
    for name in {reference.split('"')[0] for reference in text.split("#/components/schemas/")[1:]}:
        assert name in schemas


def _now() -> datetime:
    return datetime.now(UTC)
