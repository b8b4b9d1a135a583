"""Personal access tokens: what each allows, and when it ends."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote
from uuid import UUID

import pytest

from tests.support.identity.service_tokens import proven_user
from tests.support.systems.gateway import DAG, System, system
from tracelake.domain.access.service_tokens import hash_token
from tracelake.domain.access.subjects import token_name
from tracelake.errors import NotFound, Unauthenticated
from tracelake.gateway.user_tokens import UserTokens

pytestmark = pytest.mark.anyio

READER, WRITER, ADMIN = "acme|reader", "acme|writer", "acme|admin"
SHARED = DAG.replace("{job: clean}", "{job: clean, read_roles: [finance]}")


@pytest.fixture
async def trace(state_db: str, queue_db: str, tmp_path: Path) -> AsyncIterator[System]:
    async with system(state_db, queue_db, tmp_path) as made:
        yield made


async def id_of(trace: System, subject: str) -> str:
    (user,) = (await trace.got(ADMIN, "GET", "/v1/users", params={"subject": subject}))["users"]
    found: str = user["id"]
    return found


async def token_of(trace: System, user: str, **more: Any) -> str:
    made = await trace.got(user, "POST", "/v1/tokens", json={"name": "robot"} | more)
    found: str = made["token"]
    return found


async def status(trace: System, token: str, method: str, path: str, **more: Any) -> int:
    answer = await trace.gateway.request(method, path, headers={"authorization": f"Bearer {token}"}, **more)
    return answer.status_code


async def test_a_personal_token_allows_no_more_than_its_role_and_is_stored_as_a_hash_only(trace: System) -> None:
    token = await token_of(trace, ADMIN, role="writer", days=1)
    assert re.fullmatch(r"trace_pat_[A-Za-z0-9_-]{43}", token)
    assert await status(trace, token, "GET", "/v1/roles") == 200
    assert await status(trace, token, "GET", "/v1/users") == 403
    me = (await trace.gateway.get("/v1/me", headers={"authorization": f"Bearer {token}"})).json()
    assert (me["role"], me["org_slug"]) == ("writer", "acme")
    (row,) = (await trace.got(ADMIN, "GET", "/v1/tokens"))["tokens"]
    assert (row["name"], row["role"], row["expired"], row["last_used_at"] is None) == ("robot", "writer", False, False)
    stored = str(await trace.control.pool.fetch("SELECT t::text FROM user_tokens t"))
    assert token.removeprefix("trace_pat_") not in stored
    assert token.encode().hex() not in stored


async def test_a_personal_token_of_an_admin_reads_only_what_its_role_may(trace: System) -> None:
    await trace.got(ADMIN, "POST", "/v1/roles", json={"role": "finance"})
    await trace.deploy("shop", SHARED)
    await trace.got(ADMIN, "GET", "/v1/datasets/shop_clean")
    token = await token_of(trace, ADMIN)
    assert await status(trace, token, "GET", "/v1/datasets/shop_clean") == 404
    name = quote(token_name(await trace.control.pool.fetchval("SELECT id FROM user_tokens")), safe="")
    body = {"tables": [{"name": "shop_clean"}]}
    found = (
        await trace.inside.post("/internal/query/relations", json=body, headers=proven_user(unquote(name)).headers)
    ).json()
    assert (found["relations"], found["readable"]) == ([], ["shop_orders"])  # what a query by it may read


async def test_a_personal_token_ends_when_it_is_revoked_or_expires_or_its_user_goes(trace: System) -> None:
    token = await token_of(trace, WRITER, role="writer")
    assert await status(trace, token, "GET", "/v1/tasks") == 200
    assert await trace.refused(READER, "DELETE", "/v1/tokens/robot") == (404, "not_found")
    await trace.got(WRITER, "DELETE", "/v1/tokens/robot")
    assert await status(trace, token, "GET", "/v1/tasks") == 401

    token = await token_of(trace, WRITER, role="writer")
    assert await status(trace, token, "GET", "/v1/roles") == 200
    writer = await id_of(trace, WRITER)
    await trace.got(ADMIN, "PUT", f"/v1/users/{writer}/role", json={"role": "reader"})
    assert await status(trace, token, "GET", "/v1/roles") == 403
    await trace.control.pool.execute(
        "UPDATE user_tokens SET created_at = now() - interval '2 days', expires_at = now() - interval '1 day'"
    )
    assert await status(trace, token, "GET", "/v1/tasks") == 401
    assert (await trace.got(WRITER, "GET", "/v1/tokens"))["tokens"][0]["expired"]

    token = await token_of(trace, WRITER)  # in place of the one that has expired
    assert await status(trace, token, "GET", "/v1/tasks") == 200
    await trace.got(ADMIN, "DELETE", f"/v1/users/{writer}")
    assert await status(trace, token, "GET", "/v1/tasks") == 401
    await trace.got(ADMIN, "POST", "/v1/users", json={"subject": WRITER})
    assert await status(trace, token, "GET", "/v1/tasks") == 401


async def test_bad_personal_tokens_and_those_wider_than_their_owner_are_refused(trace: System) -> None:
    for body, code in (
        ({"name": "robot", "role": "admin"}, "invalid_request"),
        ({"name": "robot", "role": "root"}, "invalid_request"),
        ({"name": "robot", "days": 0}, "invalid_request"),
        ({"name": "robot", "days": 367}, "invalid_request"),
        ({"name": "Robot"}, "invalid_request"),
    ):
        assert (await trace.refused(WRITER, "POST", "/v1/tokens", json=body))[1] == code, body
    token = await token_of(trace, WRITER, role="writer")
    assert (await trace.refused(WRITER, "POST", "/v1/tokens", json={"name": "robot"}))[1] == "conflict"
    assert await status(trace, token, "POST", "/v1/tokens", json={"name": "more"}) == 403
    hashed = hash_token(token).hex()
    for bad in (token[:-1], token + "a", token[:-1] + ("a" if token[-1] != "a" else "b"), "trace_pat_", hashed):
        assert await status(trace, bad, "GET", "/v1/tasks") == 401, bad
    forged = trace.token(token_name(await trace.control.pool.fetchval("SELECT id FROM user_tokens")))
    assert await status(trace, forged, "GET", "/v1/tasks") == 401  # as the subject of a signed token
    assert (await trace.internal.post("/internal/user-token", json={"token_hash": hashed})).status_code == 401


async def test_a_personal_token_is_looked_up_again_after_seconds_and_the_gateway_remembers_no_secret() -> None:
    now, asked, good = [0.0], list[bytes](), [True]

    async def find(hashed: bytes) -> UUID:
        asked.append(hashed)
        if not good[0]:
            raise NotFound("gone")
        return UUID(int=1)

    tokens, token = UserTokens(find, monotonic=lambda: now[0]), "trace_pat_" + "a" * 43
    for _ in range(3):
        assert await tokens.user(token, "here") == token_name(UUID(int=1))
    assert (len(asked), token in str(vars(tokens))) == (1, False)
    good[0], now[0] = False, 3.0
    for _ in range(2):
        with pytest.raises(Unauthenticated):
            await tokens.user(token, "here")
    assert len(asked) == 3
