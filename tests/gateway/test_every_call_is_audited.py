"""Every call that may change something leaves its entry in the audit; of those that read, only a refused one does."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import httpx
import pytest

from tests.support.identity.service_tokens import as_service, proven_user
from tests.support.systems.whole_api import WholeApi, whole_api
from tracelake.domain.access.subjects import ROLES
from tracelake.wire.calls.user_calls import CALLS, Call

pytestmark = pytest.mark.anyio

READER, ADMIN = "acme|reader", "acme|admin"
NAMES: Final = ("dag", "job", "dataset", "alert", "channel", "role", "org", "token", "secret", "queue")
IDS: Final = ("request", "task", "publish", "bundle", "backfill", "release", "delivery", "user", "service_token")
FOR_ALL: Final = [call for call in CALLS.values() if not call.platform]


@pytest.fixture
async def api(state_db: str, queue_db: str, data_db: str, tmp_path: Path) -> AsyncIterator[WholeApi]:
    async with whole_api(state_db, queue_db, data_db, tmp_path) as made:
        yield made


async def entries(api: WholeApi, actor: str) -> list[dict[str, Any]]:
    rows = await api.trace.control.pool.fetch("SELECT * FROM audit_entries WHERE actor = $1 ORDER BY id", actor)
    return [dict(row) for row in rows]


async def ask(api: WholeApi, user: str, call: Call) -> httpx.Response:
    """About what does not exist: the entry is made whatever becomes of the call."""
    parts = {**dict.fromkeys(NAMES, "nothing"), **dict.fromkeys(IDS, str(uuid4())), "kind": "job"}
    return await api.trace.ask(user, call.method, "/v1" + call.path.format_map(parts))


async def test_every_call_that_may_change_something_is_recorded_once_with_its_outcome(api: WholeApi) -> None:
    for call in FOR_ALL:
        await ask(api, ADMIN, call)
    found = await entries(api, ADMIN)
    assert Counter(row["action"] for row in found) == Counter(call.name for call in FOR_ALL if call.method != "GET")
    assert {row["outcome"] for row in found} <= {"done", "refused"}
    assert all(row["origin"] == "127.0.0.1" for row in found)


async def test_every_call_that_the_role_does_not_allow_is_recorded_as_refused(api: WholeApi) -> None:
    for call in CALLS.values():
        assert (await ask(api, READER, call)).status_code != httpx.codes.UNAUTHORIZED
    found = Counter(row["action"] for row in await entries(api, READER) if row["code"] == "forbidden")
    assert found == Counter(call.name for call in CALLS.values() if call.role != ROLES[0] or call.platform)


async def test_an_entry_of_another_service_names_the_object_and_the_token(api: WholeApi) -> None:
    made = await api.trace.got(ADMIN, "POST", "/v1/tokens", json={"name": "robot", "role": "admin"})
    delivery = str(uuid4())
    headers = {"authorization": f"Bearer {made['token']}"}
    answer = await api.trace.gateway.post(f"/v1/alerts/deliveries/{delivery}/retry", headers=headers)
    assert answer.status_code == httpx.codes.NOT_FOUND
    (entry,) = [row for row in await entries(api, ADMIN) if row["action"] == "retry_delivery"]
    assert (entry["object"], entry["outcome"], entry["code"]) == (f"delivery={delivery}", "refused", "not_found")
    assert " token " in entry["origin"]


@pytest.mark.parametrize(
    ("service", "action", "status"),
    [("delivery", "retry_delivery", 200), ("delivery", "deploy", 403), ("query", "retry_delivery", 403)],
)
async def test_a_service_records_its_own_calls_and_only_for_whom_it_answers(
    api: WholeApi, service: Any, action: str, status: int
) -> None:
    body = {"action": action, "object": "", "client": "127.0.0.1"}
    proven = {**as_service(service), **proven_user(ADMIN, service).headers}
    begun = await api.trace.internal.post("/internal/audit/begin", json=body, headers=proven)
    assert begun.status_code == status, begun.text
    alone = {**proven, "x-trace-user-proof": "9999999999." + "0" * 64}
    refused = await api.trace.internal.post("/internal/audit/begin", json=body, headers=alone)
    assert refused.status_code == httpx.codes.FORBIDDEN
    assert len(await entries(api, ADMIN)) == (status == httpx.codes.OK)


async def test_a_service_cannot_say_how_the_call_of_another_ended(api: WholeApi) -> None:
    sql = (
        "INSERT INTO audit_entries (org_id, actor, action, object, origin)"
        " SELECT org_id, external_id, 'deploy', '', '' FROM users WHERE external_id = $1 RETURNING id"
    )
    entry = await api.trace.control.pool.fetchval(sql, ADMIN)
    body = {"entry": str(entry), "action": "retry_delivery", "outcome": "done"}
    headers = {**as_service("delivery"), **proven_user(ADMIN, "delivery").headers}
    answer = await api.trace.internal.post("/internal/audit/end", json=body, headers=headers)
    assert answer.status_code == httpx.codes.NOT_FOUND, answer.text
    assert [row["outcome"] for row in await entries(api, ADMIN)] == ["begun"]
