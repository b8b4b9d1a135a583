"""Invitations: a user whom an admin adds with `days` calls within them for the first time, or is no user."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.systems.gateway import System, system
from tests.support.systems.whole_api import whole_api

pytestmark = pytest.mark.anyio

ADMIN, RIVAL = "acme|admin", "rival|admin"
EXPIRED = (401, "invitation_expired")


@pytest.fixture
async def trace(state_db: str, queue_db: str, tmp_path: Path) -> AsyncIterator[System]:
    async with system(state_db, queue_db, tmp_path) as made:
        yield made


async def invite(trace: System, subject: str, admin: str = ADMIN, **more: Any) -> dict[str, Any]:
    made: dict[str, Any] = await trace.got(admin, "POST", "/v1/users", json={"subject": subject, "days": 7, **more})
    return made


async def expire(trace: System, subject: str) -> None:
    moved = "UPDATE users SET invited_until = now() - interval '1 s' WHERE external_id = $1 AND invited_until > now()"
    assert await trace.control.pool.execute(moved, subject) == "UPDATE 1"


async def test_the_first_call_accepts_an_invitation_and_then_it_cannot_expire(trace: System) -> None:
    made = await invite(trace, "ana", role="writer")
    until = "SELECT invited_until - created_at = interval '7 days' FROM users WHERE external_id = 'ana'"
    assert await trace.control.pool.fetchval(until)
    assert made["invited_until"] is not None
    found = await asyncio.gather(*(trace.got("ana", "GET", "/v1/me") for _ in range(8)))
    assert {(user["id"], user["role"]) for user in found} == {(made["id"], "writer")}
    (shown,) = (await trace.got(ADMIN, "GET", "/v1/users", params={"subject": "ana"}))["users"]
    assert shown["invited_until"] is None


async def test_a_user_added_without_days_may_call_at_any_time(trace: System) -> None:
    made = await trace.got(ADMIN, "POST", "/v1/users", json={"subject": "ana"})
    assert made["invited_until"] is None
    await trace.control.pool.execute("UPDATE users SET created_at = now() - interval '9 years'")
    await trace.got("ana", "GET", "/v1/me")


async def test_an_expired_invitation_is_refused_by_every_service_with_what_to_do(
    state_db: str, queue_db: str, data_db: str, tmp_path: Path
) -> None:
    async with whole_api(state_db, queue_db, data_db, tmp_path) as api:
        trace = api.trace
        await invite(trace, "ana", role="admin")
        await expire(trace, "ana")
        for path in ("/v1/me", "/v1/dags", "/v1/alerts/deliveries", "/v1/datasets/nothing/verify"):
            answer = await trace.ask("ana", "GET", path)
            error = answer.json()["error"]
            assert (answer.status_code, error["code"], error["where"]) == (*EXPIRED, "header Authorization"), path
            assert error["message"] == "the invitation of this user has expired"
            assert "trace user add" in error["hint"]
        query = await trace.ask("ana", "POST", "/v1/query", json={"sql": "SELECT 1"})
        assert (query.status_code, query.json()["error"]["code"]) == EXPIRED
        still = "SELECT invited_until IS NOT NULL FROM users WHERE external_id = 'ana'"
        assert await trace.control.pool.fetchval(still)


async def test_an_expired_invitation_can_be_given_again_also_by_another_organisation(trace: System) -> None:
    first = await invite(trace, "ana")
    await trace.got(ADMIN, "POST", "/v1/roles", json={"role": "finance"})
    await trace.got(ADMIN, "PUT", f"/v1/roles/finance/members/{first['id']}")
    assert await trace.refused(ADMIN, "POST", "/v1/users", json={"subject": "ana"}) == (409, "conflict")
    await expire(trace, "ana")
    again = await invite(trace, "ana")
    assert (again["id"] != first["id"], again["org_roles"]) == (True, []), "nothing of the former one is left"
    await expire(trace, "ana")
    other = await invite(trace, "Ana", RIVAL, role="writer")
    assert (await trace.got("Ana", "GET", "/v1/me"))["id"] == other["id"]
    assert await trace.refused("ana", "GET", "/v1/me") == (401, "unauthenticated")
    assert (await trace.got(ADMIN, "GET", "/v1/users", params={"subject": "ana"}))["users"] == []


async def test_an_admin_who_has_not_accepted_yet_is_no_other_admin(trace: System) -> None:
    """Else the last one could go, and the invitation expire."""
    own = (await trace.got(ADMIN, "GET", "/v1/me"))["id"]
    await invite(trace, "ana", role="admin")
    for method, path, body in (("DELETE", "", None), ("PUT", "/role", {"role": "reader"})):
        assert await trace.refused(ADMIN, method, f"/v1/users/{own}{path}", json=body) == (409, "conflict")
    await trace.got("ana", "GET", "/v1/me")
    await trace.got(ADMIN, "DELETE", f"/v1/users/{own}")


async def test_an_invitation_is_withdrawn_as_a_user_is_removed(trace: System) -> None:
    made = await invite(trace, "ana")
    await trace.got(ADMIN, "DELETE", f"/v1/users/{made['id']}")
    assert await trace.refused("ana", "GET", "/v1/me") == (401, "unauthenticated")


@pytest.mark.parametrize("days", [0, -1, 366, 1.5, "7", True, 10**30])
async def test_days_that_make_no_sense_are_refused_with_their_place(trace: System, days: Any) -> None:
    answer = await trace.ask(ADMIN, "POST", "/v1/users", json={"subject": "ana", "days": days})
    assert (answer.status_code, answer.json()["error"]["where"]) == (400, "/days"), answer.text
