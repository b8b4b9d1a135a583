"""Every cell of docs/reference/permissions.md: each call by each role, without a token, and by another organisation."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.support.dispatcher.job_chain import drained
from tests.support.systems.gateway import DAG, System, system
from tests.support.systems.whole_api import whole_api
from tracelake.wire.calls.user_calls import CALLS, ROLES, Call

pytestmark = pytest.mark.anyio

READER, WRITER, ADMIN, RIVAL = "acme|reader", "acme|writer", "acme|admin", "rival|admin"
MISSING = str(uuid4())
PATH = {
    "dag": "shop",
    "job": "fetch",
    "request": MISSING,
    "task": MISSING,
    "dataset": "shop_orders",
    "queue": "tasks-ecs_platform",
    "publish": MISSING,
    "bundle": MISSING,
    "alert": "whales",
    "channel": "ops",
    "delivery": MISSING,
    "backfill": MISSING,
    "release": MISSING,
    "user": MISSING,
    "role": "finance",
    "org": "acme",
    "token": "robot",
    "service_token": MISSING,
    "kind": "job",
    "secret": "api_key",
}
HERE = [call for call in CALLS.values() if call.service == "dispatcher"]
AWAY = [call for call in CALLS.values() if call.service != "dispatcher"]
"""Those of the delivery process and of the Query service."""
OWN = {
    *("deploy", "revoke_token", "show_org", "show_org_limits", "set_org_limits", "revoke_service_token", "set_secret"),
    "redrive_messages",
}
"""Their names are the caller's own; organisations, services and queues are for platform admins, who see all of them."""
REAL = {"dag", "task", "dataset", "user", "role", "alert", "channel"}
"""Parts of paths of which `filled` makes an object."""
BODIES: dict[str, Any] = {
    "activate": {"dag_version_id": MISSING},
    "trigger": {"cursor": 1},
    "fire_source": {},
    "start_backfill": {},
    "cancel_task": {"reason": "x"},
    "invalidate": {"start": 0, "end": 1, "reason": "x"},
    "update_alert": {"enabled": False},
    "update_channel": {"url": "https://example.org/"},
    "set_user_role": {"role": "admin"},
    "set_secret": {"value": "hunter22"},
    "set_access": {"everyone": True},
}


@pytest.fixture
async def trace(state_db: str, queue_db: str, tmp_path: Path) -> AsyncIterator[System]:
    async with system(state_db, queue_db, tmp_path) as made:
        yield made


def path_of(call: Call, **parts: str) -> str:
    return "/v1" + call.path.format_map(PATH | parts)


async def test_each_call_needs_a_token_of_its_role_or_higher(trace: System) -> None:
    for call in HERE:
        for role in ROLES:
            answer = await trace.ask(f"acme|{role}", call.method, path_of(call))
            allowed = ROLES.index(role) >= ROLES.index(call.role) and not call.platform
            assert answer.status_code in ({200, 400, 404} if allowed else {403}), (call.name, role, answer.text)


async def test_calls_that_other_services_answer_need_their_role_too(
    state_db: str, queue_db: str, data_db: str, tmp_path: Path
) -> None:
    async with whole_api(state_db, queue_db, data_db, tmp_path) as api:
        for call in AWAY:
            for role in ROLES:
                answer = await api.trace.ask(f"acme|{role}", call.method, path_of(call))
                allowed = ROLES.index(role) >= ROLES.index(call.role)
                assert answer.status_code in ({200, 400, 404} if allowed else {403}), (call.name, role, answer.text)
        await api.trace.control.pool.execute("UPDATE users SET platform_admin = true WHERE external_id = $1", ADMIN)
        token = (await api.trace.got(ADMIN, "POST", "/v1/tokens", json={"name": "limited"}))["token"]
        for call in AWAY:
            answer = await api.trace.ask(ADMIN, call.method, path_of(call))
            assert answer.status_code in {200, 400, 404}, (call.name, answer.text)
            headers = {"authorization": f"Bearer {token}"}
            answer = await api.trace.gateway.request(call.method, path_of(call), headers=headers)
            assert (answer.status_code == 403) == (call.role != "reader"), (call.name, answer.text)


async def test_a_platform_admin_may_make_every_call(trace: System) -> None:
    await trace.control.pool.execute("UPDATE users SET platform_admin = true WHERE external_id = $1", ADMIN)
    for call in HERE:
        answer = await trace.ask(ADMIN, call.method, path_of(call))
        assert answer.status_code in {200, 400, 404}, (call.name, answer.text)


async def test_a_platform_admin_who_is_no_admin_may_not_manage_organisations(trace: System) -> None:
    await trace.control.pool.execute("UPDATE users SET platform_admin = true WHERE external_id = $1", WRITER)
    for call in (call for call in HERE if call.platform):
        assert await trace.refused(WRITER, call.method, path_of(call)) == (403, "forbidden"), call.name


async def test_no_call_is_answered_without_a_token_or_to_a_removed_user(trace: System) -> None:
    (user,) = (await trace.got(ADMIN, "GET", "/v1/users", params={"subject": WRITER}))["users"]
    await trace.got(ADMIN, "DELETE", f"/v1/users/{user['id']}")
    for call in CALLS.values():
        assert await trace.refused(None, call.method, path_of(call)) == (401, "unauthenticated"), call.name
    for call in HERE:
        assert await trace.refused(WRITER, call.method, path_of(call)) == (401, "unauthenticated"), call.name


async def test_a_token_of_an_admin_that_is_limited_to_readers_opens_what_a_reader_may(trace: System) -> None:
    token = (await trace.got(ADMIN, "POST", "/v1/tokens", json={"name": "limited"}))["token"]
    for call in HERE:
        headers = {"authorization": f"Bearer {token}"}
        answer = await trace.gateway.request(call.method, path_of(call), headers=headers)
        allowed = call.role == "reader"
        assert answer.status_code in ({200, 400, 404} if allowed else {403}), (call.name, answer.text)


async def test_what_another_organisation_has_is_not_found_by_any_call_that_names_it(trace: System) -> None:
    parts = await filled(trace)
    named = [call for call in HERE if "{" in call.path and call.name not in OWN]
    for call in named:
        body = {"json": BODIES[call.name]} if call.name in BODIES else {}
        refused = await trace.refused(RIVAL, call.method, path_of(call, **parts), **body)
        assert refused == (404, "not_found"), call.name
    there = [call for call in named if call.method == "GET" and set(re.findall(r"{(\w+)}", call.path)) <= REAL]
    assert len(there) > 10
    for call in there:
        await trace.got(ADMIN, "GET", path_of(call, **parts))


async def filled(trace: System) -> dict[str, str]:
    """Objects of `acme`, by the parts of a path that name them."""
    await trace.deploy("shop", DAG)
    await trace.got(WRITER, "POST", "/v1/dags/shop/jobs/fetch/trigger", json={"start": 0, "end": 9})
    await drained(trace.control)
    await trace.got(ADMIN, "POST", "/v1/roles", json={"role": "finance"})
    await trace.got(WRITER, "POST", "/v1/alerts/channels", json={"name": "ops", "url": "https://example.org/"})
    await trace.got(WRITER, "POST", "/v1/alerts/definitions", json={"name": "whales", "severity": "info"})
    (user,) = (await trace.got(ADMIN, "GET", "/v1/users", params={"subject": READER}))["users"]
    (task,) = (await trace.got(READER, "GET", "/v1/tasks"))["tasks"]
    dataset = (await trace.got(READER, "GET", "/v1/datasets"))["datasets"][0]
    return {"user": user["id"], "task": task["id"], "dataset": dataset["dataset_uuid"]}
