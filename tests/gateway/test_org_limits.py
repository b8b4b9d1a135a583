"""Limits of organisations through the public API: who sets them, and what a full organisation may not do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.dispatcher.job_chain import drained
from tests.support.systems.gateway import DAG, System, system
from tracelake.dispatcher.audit.link import LinkAudit

pytestmark = pytest.mark.anyio

PLATFORM, READER, WRITER, ADMIN = "acme|admin", "rival|reader", "rival|writer", "rival|admin"
LIMITS, USAGE = "/v1/orgs/rival/limits", "/v1/orgs/rival/usage"


@pytest.fixture
async def trace(state_db: str, queue_db: str, tmp_path: Path) -> AsyncIterator[System]:
    async with system(state_db, queue_db, tmp_path) as made:
        await made.control.pool.execute("UPDATE users SET platform_admin = true WHERE external_id = $1", PLATFORM)
        yield made


async def of(trace: System, limit: str) -> dict[str, Any]:
    shown = (await trace.got(PLATFORM, "GET", LIMITS))["limits"]
    found: dict[str, Any] = next(row for row in shown if row["limit"] == limit)
    return found


async def used(trace: System, user: str, limit: str, org: str = "rival") -> dict[str, Any]:
    shown = (await trace.got(user, "GET", f"/v1/orgs/{org}/usage"))["limits"]
    found: dict[str, Any] = next(row for row in shown if row["limit"] == limit)
    return found


async def test_a_platform_admin_sets_shows_and_takes_away_limits(trace: System) -> None:
    await trace.got(PLATFORM, "PATCH", LIMITS, json={"limits": {"tasks": 20, "queries": 3}})
    await trace.got(PLATFORM, "PATCH", LIMITS, json={"limits": {"queries": "none"}})
    tasks = await of(trace, "tasks")
    assert (tasks["most"], tasks["own"], tasks["set_by"]) == (20, True, PLATFORM), "what is not named stays"
    assert ((await of(trace, "queries"))["most"], (await of(trace, "queries"))["own"]) == (None, True)
    await trace.got(PLATFORM, "PATCH", LIMITS, json={"limits": {"tasks": "default", "queries": "default"}})
    assert ((await of(trace, "tasks"))["most"], (await of(trace, "tasks"))["own"]) == (None, False)


@pytest.mark.parametrize("user", [READER, WRITER, ADMIN, "acme|writer"])
async def test_nobody_else_sees_or_sets_limits(trace: System, user: str) -> None:
    assert await trace.refused(user, "GET", LIMITS) == (403, "forbidden")
    assert await trace.refused(user, "PATCH", LIMITS, json={"limits": {"tasks": 1}}) == (403, "forbidden")
    assert (await of(trace, "tasks"))["most"] is None


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        ({"tasks": 0}, "tasks: 0"),
        ({"tasks": -3}, "tasks: -3"),
        ({"object_bytes": 2**63}, "object_bytes"),
        ({"tasks": "many"}, "'many'"),
        ({"task": 5}, "no limit 'task'"),
        ({"tasks": 5, "Tasks": 6}, "no limit 'Tasks'"),
    ],
)
async def test_a_limit_that_makes_no_sense_is_refused_whole(trace: System, limits: dict[str, Any], says: str) -> None:
    answer = await trace.ask(PLATFORM, "PATCH", LIMITS, json={"limits": {"queries": 2, **limits}})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert says in error["message"]
    assert error["where"].startswith("/limits")
    assert error["hint"]
    assert (await of(trace, "queries"))["most"] is None, "nothing of it was set"


@pytest.mark.parametrize("limits", [{"tasks": 1.5}, {"tasks": True}, {"tasks": None}, {}])
async def test_what_is_no_number_is_refused_with_its_place(trace: System, limits: dict[str, Any]) -> None:
    answer = await trace.ask(PLATFORM, "PATCH", LIMITS, json={"limits": limits})
    assert (answer.status_code, answer.json()["error"]["where"][:7]) == (400, "/limits")


async def test_an_unknown_organisation_is_404_for_who_may_ask(trace: System) -> None:
    for method, more in (("GET", {}), ("PATCH", {"json": {"limits": {"tasks": 1}}})):
        assert await trace.refused(PLATFORM, method, "/v1/orgs/nobody/limits", **more) == (404, "not_found")
    assert await trace.refused(PLATFORM, "GET", "/v1/orgs/nobody/usage") == (404, "not_found")


async def test_everyone_sees_the_usage_of_their_own_organisation_and_only_platform_admins_of_others(
    trace: System,
) -> None:
    await trace.got(PLATFORM, "PATCH", LIMITS, json={"limits": {"tasks": 7}})
    assert (await used(trace, READER, "tasks"))["most"] == 7
    assert (await used(trace, READER, "tasks", "-"))["most"] == 7
    assert (await used(trace, PLATFORM, "tasks"))["most"] == 7
    assert (await used(trace, "acme|reader", "tasks", "-"))["most"] is None
    for outsider in ("acme|reader", "acme|writer"):
        unknown = await trace.refused(outsider, "GET", "/v1/orgs/nobody/usage")
        assert await trace.refused(outsider, "GET", USAGE) == unknown == (404, "not_found")


async def test_usage_counts_tasks_in_flight_and_waiting(trace: System) -> None:
    await trace.got(PLATFORM, "PATCH", LIMITS, json={"limits": {"tasks": 2}})
    await trace.deploy("shop", DAG, WRITER)
    for start in range(5):
        await trace.got(
            WRITER, "POST", "/v1/dags/shop/jobs/fetch/trigger", json={"start": 10 * start, "end": 10 * start + 9}
        )
    await drained(trace.control)
    shown = await used(trace, READER, "tasks")
    assert (shown["used"], shown["most"], shown["waiting"]) == (2, 2, 3)


async def full(trace: System, most: int | str = 100) -> None:
    """`rival` stores a bundle of 100 bytes."""
    await trace.control.pool.execute(
        "INSERT INTO udf_bundles (org_id, name, kind, sha256, size_bytes, location, status, finalized_at)"
        " SELECT id, 'big', 'python', repeat('a', 64), 100, 's3://trace/big.zip', 'Ready', now() FROM orgs"
        " WHERE slug = 'rival' ON CONFLICT DO NOTHING"
    )
    await trace.got(PLATFORM, "PATCH", LIMITS, json={"limits": {"object_bytes": most}})


async def test_a_full_organisation_learns_what_it_stores_and_what_to_do_and_others_are_served(trace: System) -> None:
    await trace.deploy("shop", DAG, WRITER)
    await trace.deploy("shop", DAG)
    trigger: dict[str, Any] = {"json": {"start": 0, "end": 9}}
    bundle = {"json": {"name": "f", "kind": "python", "sha256": "b" * 64, "size_bytes": 10}}
    asked: list[tuple[str, str, dict[str, Any]]] = [
        ("POST", "/v1/dags/shop/jobs/fetch/trigger", trigger),
        ("POST", "/v1/dags/shop/versions", {"json": {"yaml": DAG}}),
        ("POST", "/v1/udf/bundles", bundle),
        ("POST", "/v1/dags/shop/backfills", {"json": {}}),
        ("POST", "/v1/releases", {"json": {"dags": [DAG]}}),
    ]
    await full(trace)
    for method, path, more in asked:
        answer = await trace.ask(WRITER, method, path, **more)
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "limit_reached"), (path, answer.text)
        assert "stores 100 bytes, and its limit is 100 (object_bytes)" in answer.json()["error"]["message"]
        assert "trace dag delete" in answer.json()["error"]["hint"]
    await trace.got("acme|writer", "POST", "/v1/dags/shop/jobs/fetch/trigger", **trigger)
    await trace.got(READER, "GET", "/v1/dags")
    assert (await used(trace, READER, "object_bytes"))["used"] == 100
    await full(trace, 101)
    await trace.got(WRITER, "POST", "/v1/dags/shop/jobs/fetch/trigger", **trigger)


async def test_setting_a_limit_is_in_the_audit(trace: System) -> None:
    await trace.got(PLATFORM, "PATCH", LIMITS, json={"limits": {"tasks": 3}})
    await LinkAudit(trace.control.pool).once()
    rows = (await trace.got(PLATFORM, "GET", "/v1/audit"))["entries"]
    assert any(row["action"] == "set_org_limits" and "rival" in row["object"] for row in rows), rows
