"""A first login makes a user, where a rule about the claims of the token says so; and only there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from structlog.testing import capture_logs

from tests.support.identity.oidc_issuer import AUDIENCE, ISSUER, OidcIssuer, oidc_issuer
from tests.support.identity.service_tokens import as_service
from tests.support.systems.gateway import System, over, system
from tests.support.waiting import until
from tracelake.dispatcher.http.internal_routes import internal_api
from tracelake.dispatcher.identity.log_in import warn_of_unusable_rules
from tracelake.gateway.first_logins import FirstLogins, matching_claims
from tracelake.gateway.process import public_api
from tracelake.settings import IdentitySettings, LoginRule
from tracelake.wire.client import DispatcherClient
from tracelake.wire.internal.identity import UserLoginAnswer, UserLoginRequest

pytestmark = pytest.mark.anyio

RULES = {
    "a_leads": LoginRule(issuer=ISSUER, value="leads", org="acme", role="writer", org_roles=["finance", "sales"]),
    "b_staff": LoginRule(issuer=ISSUER, value="staff", org="acme"),
    "c_rivals": LoginRule(issuer=ISSUER, claim="department", value="rivals", org="rival", role="admin"),
    "d_unknown_org": LoginRule(issuer=ISSUER, value="nowhere", org="nowhere"),
    "e_unknown_role": LoginRule(issuer=ISSUER, value="typo", org="acme", org_roles=["finance", "finanse"]),
    "f_foreign_role": LoginRule(issuer=ISSUER, value="foreign", org="rival", org_roles=["finance"]),
}


@dataclass(frozen=True)
class Logins:
    trace: System
    issuer: OidcIssuer
    gateway: httpx.AsyncClient

    async def me(self, token: str) -> httpx.Response:
        return await self.gateway.get("/v1/me", headers={"authorization": f"Bearer {token}"})

    async def refusal(self, token: str) -> str:
        """Of a 401, after which there are as many users as before."""
        before = await self.users()
        answer = await self.me(token)
        assert answer.status_code == 401, answer.text
        assert await self.users() == before
        return str(answer.json()["error"]["message"])

    async def users(self) -> list[Any]:
        rows = await self.trace.control.pool.fetch("SELECT id, external_id, role, removed_at FROM users ORDER BY id")
        return [tuple(row) for row in rows]

    async def is_waiting(self) -> bool:
        """Whether a statement waits for a lock of another transaction."""
        sql = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        return bool(await self.trace.control.pool.fetch(sql))

    async def org_roles(self, subject: str) -> list[str]:
        rows = await self.trace.control.pool.fetch(
            "SELECT r.slug FROM org_role_memberships m JOIN org_roles r ON r.id = m.role_id"
            " JOIN users u ON u.id = m.user_id WHERE u.external_id = $1 ORDER BY 1",
            subject,
        )
        return [row["slug"] for row in rows]


@pytest.fixture
async def logins(state_db: str, queue_db: str, tmp_path: Path) -> AsyncIterator[Logins]:
    async with system(state_db, queue_db, tmp_path) as trace, oidc_issuer(tmp_path) as issuer:
        for role in ("finance", "sales"):
            await trace.got("acme|admin", "POST", "/v1/roles", json={"role": role, "name": role})
        identity = IdentitySettings(
            user_issuer=ISSUER,
            user_audience=AUDIENCE,
            user_jwks_url=issuer.url,
            service_token=trace.identity.service_token,
        )
        control = replace(trace.control, login_rules=RULES)
        async with (
            over(internal_api(control), as_service("gateway")) as inside,
            over(public_api(DispatcherClient(inside), identity, issuer.tls, login_rules=RULES)) as gateway,
        ):
            yield Logins(trace, issuer, gateway)


async def test_a_first_login_makes_the_user_with_the_roles_of_the_rule(logins: Logins) -> None:
    token = logins.issuer.token("idp|ann", groups=["x", "leads"], email="ann@acme.example", email_verified=True)
    answer = await logins.me(token)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert (found["org_slug"], found["role"], found["email"]) == ("acme", "writer", "ann@acme.example")
    assert not found["platform_admin"]
    assert await logins.org_roles("idp|ann") == ["finance", "sales"]
    tasks = await logins.gateway.get("/v1/tasks", headers={"authorization": f"Bearer {token}"})
    assert tasks.status_code == 200


async def test_any_first_call_makes_the_user_not_only_me(logins: Logins) -> None:
    token = logins.issuer.token("idp|ann", groups=["staff"])
    answer = await logins.gateway.get("/v1/tasks", headers={"authorization": f"Bearer {token}"})
    assert answer.status_code == 200, answer.text


async def test_the_first_matching_rule_in_the_order_of_names_counts(logins: Logins) -> None:
    token = logins.issuer.token("idp|both", groups=["staff", "leads"], department="rivals")
    assert (await logins.me(token)).json()["role"] == "writer"


async def test_two_organisations_get_their_own_users(logins: Logins) -> None:
    ann = await logins.me(logins.issuer.token("idp|ann", groups=["staff"]))
    bob = await logins.me(logins.issuer.token("idp|bob", department="rivals"))
    assert (ann.json()["org_slug"], ann.json()["role"]) == ("acme", "reader")
    assert (bob.json()["org_slug"], bob.json()["role"]) == ("rival", "admin")


async def test_an_email_that_the_issuer_has_not_verified_is_not_stored(logins: Logins) -> None:
    claims: dict[str, dict[str, Any]] = {
        "no_word": {"email": "a@b.example"},
        "denied": {"email": "a@b.example", "email_verified": False},
        "text": {"email": "a@b.example", "email_verified": "true"},
        "no_address": {"email": "a b", "email_verified": True},
        "number": {"email": 7, "email_verified": True},
    }
    for name, more in claims.items():
        answer = await logins.me(logins.issuer.token(f"idp|{name}", groups=["staff"], **more))
        assert answer.json()["email"] is None, name


async def test_the_audit_has_the_first_login_with_rule_and_address(logins: Logins) -> None:
    token = logins.issuer.token("idp|ann", groups=["leads"])
    await logins.me(token)
    await logins.me(token)
    rows = await logins.trace.control.pool.fetch(
        "SELECT actor, object, origin, outcome FROM audit_entries WHERE action = 'first_login'"
    )
    target = "rule=a_leads role=writer org_role=finance org_role=sales"
    assert [tuple(row) for row in rows] == [("idp|ann", target, "127.0.0.1", "done")]


@pytest.mark.parametrize(
    "groups",
    [
        None,
        "",
        "staff leads",
        "STAFF",
        " staff",
        "st\u0430ff",
        7,
        True,
        {"staff": True},
        {"0": "staff"},
        [],
        ["staf", "staff "],
        [None, 7, True, {}, ["staff"], [["leads"]], {"staff": "staff"}],
        ["g" * 10_000],
        [f"group-{n}" for n in range(2_000)],
    ],
    ids=str,
)
async def test_a_claim_that_does_not_hold_the_value_makes_nobody(logins: Logins, groups: Any) -> None:
    message = await logins.refusal(logins.issuer.token("idp|ann", groups=groups))
    assert message == "the token is valid, but its subject is no user of this system"


async def test_a_token_without_the_claim_makes_nobody(logins: Logins) -> None:
    assert "no user of this system" in await logins.refusal(logins.issuer.token("idp|ann"))


@pytest.mark.parametrize(
    "groups",
    ["staff", ["staff"], [None, 7, ["x"], {}, "staff"], [*(f"group-{n}" for n in range(2_000)), "staff"]],
    ids=["text", "list", "nonsense", "many"],
)
async def test_a_claim_is_a_text_or_a_list_that_may_hold_anything_else(logins: Logins, groups: Any) -> None:
    assert (await logins.me(logins.issuer.token("idp|ann", groups=groups))).status_code == 200


async def test_a_token_that_does_not_hold_makes_nobody(logins: Logins) -> None:
    issuer, past = logins.issuer, datetime.now(UTC) - timedelta(hours=2)
    staff: dict[str, Any] = {"groups": ["staff"]}
    wrong = {
        "the token comes from another issuer than this system trusts": issuer.token("x", iss="https://evil", **staff),
        "the token is made for another audience than this system": issuer.token("x", aud="other", **staff),
        "the token has expired": issuer.token("x", iat=past, exp=past + timedelta(hours=1), **staff),
        "the token was signed by a key that is not one of the issuer's": issuer.token("x", kid="two", **staff),
        "the token was not signed by the issuer that this system trusts": issuer.signed(
            "one", "RS256", foreign_key(), "x", **staff
        ),
    }
    for message, token in wrong.items():
        assert await logins.refusal(token) == message
    plain = jwt.encode({"sub": "x", **staff}, "", algorithm="none")
    await logins.refusal(plain)


async def test_a_first_login_with_a_rotated_key_makes_the_user(logins: Logins) -> None:
    assert (await logins.me(logins.issuer.token("idp|ann", groups=["staff"]))).status_code == 200
    logins.issuer.published[:] = ["two"]
    bob = logins.issuer.token("idp|bob", kid="two", groups=["staff"])

    async def is_user() -> bool:
        return (await logins.me(bob)).status_code == 200

    await until(is_user, "the new key is fetched")
    assert (await logins.me(bob)).json()["role"] == "reader"
    assert "not one of the issuer's" in await logins.refusal(logins.issuer.token("idp|eve", groups=["staff"]))


async def test_first_logins_at_once_make_one_user(logins: Logins) -> None:
    tokens = [logins.issuer.token("idp|ann", groups=["leads"], jti=str(n)) for n in range(12)]
    answers = await asyncio.gather(*map(logins.me, tokens))
    assert [answer.status_code for answer in answers] == [200] * 12
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert [user[1] for user in await logins.users()].count("idp|ann") == 1
    assert await logins.org_roles("idp|ann") == ["finance", "sales"]


async def test_look_alikes_at_once_make_one_user(logins: Logins) -> None:
    subjects = [f"idp|{name}" for name in ("ann", "Ann", "ANN", "aNn")]
    answers = await asyncio.gather(*(logins.me(logins.issuer.token(name, groups=["staff"])) for name in subjects))
    assert sorted(answer.status_code for answer in answers) == [200, 401, 401, 401]
    assert len([user for user in await logins.users() if user[1].lower() == "idp|ann"]) == 1


async def test_a_user_whom_another_organisation_adds_meanwhile_stays_there(logins: Logins) -> None:
    pool = logins.trace.control.pool
    async with pool.acquire() as other, other.transaction():
        await other.execute(
            "INSERT INTO users (org_id, external_id, subject_key, role)"
            " SELECT id, 'idp|ann', 'idp|ann', 'reader' FROM orgs WHERE slug = 'rival'"
        )
        login = asyncio.create_task(logins.me(logins.issuer.token("idp|ann", groups=["leads"])))
        await until(logins.is_waiting, "the login waits for the other transaction", seconds=20)
    found = (await login).json()
    assert (found["org_slug"], found["role"]) == ("rival", "reader")


async def test_a_user_whom_an_admin_removes_meanwhile_is_not_made_again(logins: Logins) -> None:
    pool = logins.trace.control.pool
    async with pool.acquire() as admin, admin.transaction():
        await admin.execute("SELECT FROM orgs WHERE slug = 'acme' FOR NO KEY UPDATE")  # as every verb of admins does
        await admin.execute(
            "INSERT INTO users (org_id, external_id, subject_key, role, removed_at)"
            " SELECT id, 'idp|ann', 'idp|ann', 'reader', now() FROM orgs WHERE slug = 'acme'"
        )
        login = asyncio.create_task(logins.me(logins.issuer.token("idp|ann", groups=["leads"])))
        await until(logins.is_waiting, "the login waits for the admin", seconds=20)
    answer = await login
    assert answer.status_code == 401, answer.text
    assert "an admin has removed this user" in answer.json()["error"]["message"]


async def test_a_removed_user_is_not_made_again(logins: Logins) -> None:
    token = logins.issuer.token("idp|ann", groups=["leads"])
    user = (await logins.me(token)).json()["id"]
    await logins.trace.got("acme|admin", "DELETE", f"/v1/users/{user}")
    assert "no user of this system" in await logins.refusal(token)  # what the Gateway remembers gives no right
    rival = logins.issuer.token("idp|ann", department="rivals")
    assert "an admin has removed this user" in await logins.refusal(rival)
    assert "an admin has removed" in await logins.refusal(logins.issuer.token("IDP|Ann", groups=["leads"]))


async def test_no_rule_admits_a_user_whose_invitation_has_expired(logins: Logins) -> None:
    await logins.trace.got("acme|admin", "POST", "/v1/users", json={"subject": "idp|ann", "days": 1})
    await logins.trace.control.pool.execute("UPDATE users SET invited_until = now() WHERE invited_until > now()")
    token = logins.issuer.token("idp|ann", groups=["leads"])
    assert await logins.refusal(token) == "the invitation of this user has expired"
    await logins.trace.got("acme|admin", "POST", "/v1/users", json={"subject": "idp|ann", "days": 1})
    assert (await logins.me(token)).json()["role"] == "reader", "what the admin gave, not the rule"


async def test_a_removed_user_whom_an_admin_adds_again_is_one(logins: Logins) -> None:
    token = logins.issuer.token("idp|ann", groups=["leads"])
    user = (await logins.me(token)).json()["id"]
    await logins.trace.got("acme|admin", "DELETE", f"/v1/users/{user}")
    await logins.trace.got("rival|admin", "POST", "/v1/users", json={"subject": "idp|ann", "role": "reader"})
    found = (await logins.me(token)).json()
    assert (found["org_slug"], found["role"]) == ("rival", "reader")


async def test_an_existing_user_keeps_organisation_and_roles(logins: Logins) -> None:
    before = await logins.users()
    answer = await logins.me(logins.issuer.token("acme|reader", groups=["leads"], department="rivals"))
    assert (answer.json()["org_slug"], answer.json()["role"]) == ("acme", "reader")
    assert await logins.org_roles("acme|reader") == []
    assert await logins.users() == before


@pytest.mark.parametrize("look_alike", ["SPY", "Spy", "\uff53py", "\u0455\u0440\u0443", "\u0455py"], ids=ascii)
async def test_a_subject_that_resembles_a_user_makes_nobody(logins: Logins, look_alike: str) -> None:
    await logins.trace.got("rival|admin", "POST", "/v1/users", json={"subject": "spy", "role": "reader"})
    message = await logins.refusal(logins.issuer.token(look_alike, groups=["staff"]))
    assert "resembles" in message or "mixes letters" in message


@pytest.mark.parametrize("subject", [" idp", "idp\u200dx", "a\u0301", "\u0430bc"], ids=ascii)
async def test_a_subject_that_no_admin_could_add_makes_nobody(logins: Logins, subject: str) -> None:
    await logins.refusal(logins.issuer.token(subject, groups=["staff"]))


@pytest.mark.parametrize("group", ["nowhere", "typo", "foreign"])
async def test_a_rule_with_an_unknown_organisation_or_role_makes_nobody(logins: Logins, group: str) -> None:
    with capture_logs() as lines:
        message = await logins.refusal(logins.issuer.token("idp|ann", groups=[group]))
    assert "names an organisation or a role that does not exist" in message
    assert [line["event"] for line in lines if line["log_level"] == "error"] == ["login_rule_unusable"]


async def test_the_dispatcher_names_the_rules_that_it_cannot_use_when_it_starts(logins: Logins) -> None:
    with capture_logs() as lines:
        await warn_of_unusable_rules(logins.trace.control.pool, RULES)
    assert [line["reason"] for line in lines] == [
        "login_rules.d_unknown_org: there is no organisation 'nowhere'",
        "login_rules.e_unknown_role: the organisation 'acme' has no role 'finanse'",
        "login_rules.f_foreign_role: the organisation 'rival' has no role 'finance'",
    ]


async def test_a_deleted_role_leaves_its_rule_without_effect_until_it_is_there_again(logins: Logins) -> None:
    await logins.trace.got("acme|admin", "DELETE", "/v1/roles/sales")
    assert "does not exist" in await logins.refusal(logins.issuer.token("idp|ann", groups=["leads"]))
    await logins.trace.got("acme|admin", "POST", "/v1/roles", json={"role": "sales", "name": "sales"})
    again = logins.issuer.token("idp|ann2", groups=["leads"])
    assert (await logins.me(again)).status_code == 200


@pytest.mark.parametrize(
    "change",
    [
        {"subject": ""},
        {"subject": "x" * 256},
        {"subject": None},
        {"claims": []},
        {"claims": [{"claim": "groups"}]},
        {"claims": [{"claim": "groups", "value": "v" * 257}]},
        {"claims": [{"claim": "groups", "value": "v"}] * 1001},
        {"origin": "o" * 65},
        {"org": "rival"},
        {"role": "admin"},
    ],
    ids=lambda change: next(iter(change)),
)
async def test_a_wrong_body_of_the_internal_call_is_refused(logins: Logins, change: dict[str, Any]) -> None:
    body = {"subject": "idp|ann", "claims": [{"claim": "groups", "value": "staff"}], "origin": "127.0.0.1"}
    answer = await logins.trace.inside.post(
        "/internal/user-login", content=json.dumps(body | change), headers=as_service("gateway")
    )
    assert answer.status_code == 400, answer.text


async def test_only_the_gateway_makes_the_call(logins: Logins) -> None:
    body = {"subject": "idp|ann", "claims": [{"claim": "groups", "value": "staff"}], "origin": "127.0.0.1"}
    for service in ("query", "worker", "sink", "delivery", "scheduler", "runner", "monitor", "supervisor"):
        answer = await logins.trace.internal.post("/internal/user-login", json=body, headers=as_service(service))
        assert answer.status_code == 403, service


async def test_the_dispatcher_is_asked_once_in_some_seconds_and_not_about_tokens_without_a_match() -> None:
    now, asked = [0.0], list[UserLoginRequest]()

    async def log_in(request: UserLoginRequest) -> UserLoginAnswer:
        asked.append(request)
        return UserLoginAnswer()

    logins = FirstLogins(RULES, log_in, monotonic=lambda: now[0])
    await logins.ensure_user("a", {"groups": ["other"]}, "here", "header")
    assert asked == []
    for _ in range(5):
        await logins.ensure_user("a", {"groups": ["staff", "other"]}, "here", "header")
    assert [request.claims for request in asked] == [matching_claims([("groups", "staff")], {"groups": "staff"})]
    await logins.ensure_user("a", {"groups": ["staff", "leads"]}, "here", "header")  # other claims: asked anew
    now[0] += 3
    await logins.ensure_user("a", {"groups": ["staff"]}, "here", "header")
    assert len(asked) == 3


def foreign_key() -> Any:
    """An RSA key that the issuer does not have."""
    return rsa.generate_private_key(65537, 2048)
