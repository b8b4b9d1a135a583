"""Who a user is: forged tokens, tokens for others, two identities in one request, and the keys of an OIDC issuer."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any, cast

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from tests.support.dispatcher.job_chain import claimed
from tests.support.identity.oidc_issuer import AUDIENCE, ISSUER, oidc_issuer, public_key
from tests.support.identity.service_tokens import TOKENS, as_service
from tests.support.systems.gateway import ADMIN, READER, System, deployed, over, triggered
from tests.support.tls import https, tls_in
from tracelake.capability.jws import encode_part, public_jwk, sign_token
from tracelake.dispatcher.http.internal_routes import internal_api
from tracelake.gateway.issuer_keys import user_keys
from tracelake.gateway.process import public_api
from tracelake.runtime.listeners import Listener, open_listeners
from tracelake.settings import IdentitySettings, TlsSettings
from tracelake.wire.calls.user_calls import USER
from tracelake.wire.client import DispatcherClient
from tracelake.wire.service.headers import SERVICE_TOKEN

pytestmark = pytest.mark.anyio


async def test_no_identity_is_accepted_in_place_of_another(trace: System) -> None:
    await deployed(trace)
    await triggered(trace)
    task = await trace.control.pool.fetchval("SELECT id FROM tasks")
    capability = (await claimed(trace.control, task))[0].capability_token
    for bearer in (TOKENS["gateway"], capability, "", "x.y.z", "[" * 5000):
        answer = await trace.gateway.get("/v1/tasks", headers={"authorization": f"Bearer {bearer}"})
        assert answer.status_code == 401, bearer
    user = trace.token(ADMIN)
    for headers in ({}, {SERVICE_TOKEN: user}, {"authorization": f"Bearer {user}"}, {SERVICE_TOKEN: capability}):
        answer = await trace.internal.get("/internal/v1/tasks", headers={USER: ADMIN} | headers)
        assert answer.status_code == 401, headers


async def test_forged_tokens_and_tokens_for_other_audiences_are_refused(trace: System) -> None:
    good = jwt.decode(trace.token(ADMIN), options={"verify_signature": False})
    other, pem = ec.generate_private_key(ec.SECP256R1()), str(trace.identity.user_public_key)
    forged = [
        jwt.encode(good, other, algorithm="ES256"),
        jwt.encode(good, cast("Any", None), algorithm="none"),
        *(
            signed(trace, good | wrong)
            for wrong in (
                {"iss": "elsewhere"},
                {"aud": "elsewhere"},
                {"exp": 1},
                {"exp": 10**30},
                {"exp": good["exp"] + 337 * 86400},
                {"exp": str(10**30)},
                {"sub": ""},
                {"sub": "a\nb"},
                {"iat": 2**40},
            )
        ),
        *(signed(trace, {k: v for k, v in good.items() if k != gone}) for gone in ("exp", "iat", "sub", "iss", "aud")),
    ]
    header = {"alg": "ES256", "typ": "JWT"}
    jwk = public_jwk(other.public_key())
    for more in (
        {"jwk": jwk},
        {"jku": "https://evil/"},
        {"x5u": "https://evil/"},
        {"x5c": ["MA=="]},
        {"crit": ["exp"]},
    ):
        forged += [signed(trace, good, header | more)]
    twice = json.dumps(good)[:-1] + ', "sub": "acme|reader"}'
    forged += [
        sealed(trace, json.dumps(header), twice),
        sealed(trace, '{"alg":"ES256","alg":"ES256"}', json.dumps(good)),
    ]
    forged.append(with_other_signature(trace.token(ADMIN)))
    head = jwt.utils.base64url_encode(json.dumps({"alg": "HS256", "typ": "JWT"}).encode())
    body = jwt.utils.base64url_encode(json.dumps(good).encode())
    mac = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256).sign(head + b"." + body, pem.encode())
    forged.append(b".".join([head, body, jwt.utils.base64url_encode(mac)]).decode())
    for token in forged:
        answer = await trace.gateway.get("/v1/tasks", headers={"authorization": f"Bearer {token}"})
        assert answer.status_code == 401, answer.text
    answer = await trace.gateway.get("/v1/tasks", headers={"authorization": f"Bearer {signed(trace, good)}"})
    assert answer.status_code == 200, "the good one that these were made from"
    assert await trace.refused("acme|missing", "GET", "/v1/tasks") == (401, "unauthenticated")
    assert await trace.refused("acme|n\u00f6b\u00f6dy", "GET", "/v1/me") == (401, "unauthenticated")


def signed(trace: System, claims: dict[str, Any], header: dict[str, Any] | None = None) -> str:
    return sealed(trace, json.dumps(header or {"alg": "ES256", "typ": "JWT"}), json.dumps(claims))


def sealed(trace: System, header: str, payload: str) -> str:
    return sign_token(encode_part(header.encode()), payload.encode(), trace.key)


def with_other_signature(token: str) -> str:
    """The same token with the other signature that ECDSA takes for as good."""
    text, _, signature = token.rpartition(".")
    raw = base64.urlsafe_b64decode(signature + "==")
    order = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
    other = raw[:32] + (order - int.from_bytes(raw[32:])).to_bytes(32)
    return f"{text}.{encode_part(other).decode()}"


async def test_a_caller_shows_one_identity_at_every_listener(trace: System, tmp_path: Path) -> None:
    """Two tokens in one request: a proxy before us may have read the other one."""
    tls = tls_in(tmp_path / "two")
    listeners = [Listener(name, "127.0.0.1", 0, app) for name, app in apps(trace).items()]
    good = {
        "gateway": ("authorization", f"Bearer {trace.token(ADMIN)}"),
        "internal": (SERVICE_TOKEN, TOKENS["gateway"]),
    }
    paths = {"gateway": "/v1/me", "internal": "/internal/v1/tasks"}
    async with open_listeners(listeners, TlsSettings(cert=tls.cert, key=tls.key)) as at:
        for name, header in good.items():
            async with https(at[name], tls.ca) as http:
                user = [(USER, ADMIN)] if name == "internal" else []
                once = await http.get(paths[name], headers=[header, *user])
                assert once.status_code == 200, once.text
                twice = await http.get(paths[name], headers=[header, *user, (header[0], "Bearer other")])
                assert (twice.status_code, twice.json()["error"]["where"]) == (400, f"header {header[0].lower()}")


def apps(trace: System) -> dict[str, Any]:
    return {
        "gateway": public_api(DispatcherClient(trace.inside), trace.identity),
        "internal": internal_api(trace.control),
    }


async def test_an_oidc_issuers_users_are_known_by_its_published_keys(trace: System, tmp_path: Path) -> None:
    async with (
        oidc_issuer(tmp_path) as issuer,
        over(internal_api(trace.control), as_service("gateway")) as inside,
    ):
        identity = IdentitySettings(
            user_issuer=ISSUER,
            user_audience=AUDIENCE,
            user_jwks_url=issuer.url,
            service_token=trace.identity.service_token,
        )
        async with over(public_api(DispatcherClient(inside), identity, issuer.tls)) as gateway:

            async def status(kid: str | None, algorithm: str, key: Any) -> int:
                token = issuer.signed(kid, algorithm, key, READER)
                return (await gateway.get("/v1/tasks", headers={"authorization": f"Bearer {token}"})).status_code

            keys = issuer.keys
            assert await status("one", "RS256", keys["one"]) == 200
            assert await status(None, "RS256", keys["one"]) == 200  # the only one there is
            assert await status("shared", "HS256", b"secret" * 6) == 401
            for n in range(50):
                assert await status(f"made-up-{n}", "ES256", keys["two"]) == 401
            assert issuer.fetched == 1  # a flood of made-up key ids does not reach the issuer
            assert await status("one", "ES256", keys["two"]) == 401
            assert (
                await gateway.get("/v1/tasks", headers={"authorization": f"Bearer {trace.token(READER)}"})
            ).status_code == 401


async def test_a_new_key_of_the_issuer_is_found_and_a_removed_one_is_dropped() -> None:
    now, published, fail = [0.0], ["one"], [False]
    keys = {kid: public_key(ec.generate_private_key(ec.SECP256R1())) | {"kid": kid} for kid in ("one", "two")}

    async def fetch() -> dict[str, Any]:
        if fail[0]:
            raise OSError("away")
        return {"keys": [keys[kid] for kid in published]}

    known = user_keys(fetch, monotonic=lambda: now[0])
    assert await known.find("one") is not None
    published[:] = ["two"]
    assert await known.find("two") is None  # too soon to fetch again
    now[0] += 5
    assert await known.find("two") is not None
    assert await known.find("one") is None
    fail[0], now[0] = True, now[0] + 1000
    assert await known.find("two") is not None  # known keys stay good while the issuer is away


async def test_a_fetch_that_began_before_a_key_was_published_is_followed_by_another() -> None:
    now, published = [0.0], ["one"]
    keys = {kid: public_key(ec.generate_private_key(ec.SECP256R1())) | {"kid": kid} for kid in ("one", "two")}
    answers, fetching = asyncio.Event(), asyncio.Event()

    async def fetch() -> dict[str, Any]:
        document = {"keys": [keys[kid] for kid in published]}
        fetching.set()
        await answers.wait()
        return document

    known = user_keys(fetch, monotonic=lambda: now[0])
    early = asyncio.create_task(known.find("one"))
    await fetching.wait()
    published.append("two")
    now[0] += 5
    late = asyncio.create_task(known.find("two"))
    await asyncio.sleep(0)
    answers.set()
    assert await early is not None
    assert await late is not None
