"""The guarantees of the `Signer` port, proven on every adapter: KMS is moto, over HTTP."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import jwt
import pytest

from tests.support.identity.signers import Signers, kms_settings, kms_signers, pem_signers, sealed_signers
from tests.support.identity.tokens import CLAIMS, ISSUER, Clock, Key
from tracelake.capability.claims import encode, mint
from tracelake.capability.jws import is_canonical, parse_token
from tracelake.capability.refusal import Reason, TokenRefused
from tracelake.capability.verifier import Verifier
from tracelake.errors import SigningUnavailable
from tracelake.ports import KeyPlan, PublicKey
from tracelake.settings import TokenSettings
from tracelake.store.db import open_pool
from tracelake.store.signing_keys import maintain_keys, published, revoke, update_keys

pytestmark = pytest.mark.anyio

TOKENS = TokenSettings(issuer=ISSUER)


@pytest.fixture(params=["pem", "kms", "kms_sealed"])
async def signers(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Signers]:
    if request.param == "pem":
        yield pem_signers(tmp_path / "keys")
        return
    if request.param == "kms_sealed":
        async with sealed_signers(request.getfixturevalue("moto"), tmp_path / "objects") as sealed:
            yield sealed
        return
    async with kms_signers(kms_settings(request.getfixturevalue("moto"))) as made:
        yield made


async def test_it_signs_with_the_key_of_the_plan_and_no_other(signers: Signers) -> None:
    signer = signers.open()
    kids = [(await signer.rotate()).kid for _ in range(2)]
    keys = {key.kid: key for key in await signer.keys()}
    assert keys.keys() == set(kids)
    await signer.follow(KeyPlan(kids[1], (), rotation_due=False))
    token = await mint(signer, CLAIMS)
    assert jwt.get_unverified_header(token) == {"alg": "ES256", "kid": kids[1], "typ": "JWT"}
    assert jwt.api_jws.decode(token, jwt.PyJWK(dict(keys[kids[1]].jwk)), ["ES256"]) == encode(CLAIMS)


async def test_every_signature_is_the_one_spelling_that_verifiers_accept(signers: Signers) -> None:
    signer = await signers.signing()
    tokens = [await signer.sign(json.dumps({"n": number}).encode()) for number in range(16)]
    assert all(is_canonical(parse_token(token).signature) for token in tokens)


async def test_without_a_plan_nothing_is_signed(signers: Signers) -> None:
    signer = signers.open()
    await signer.rotate()
    await signer.keys()
    with pytest.raises(SigningUnavailable) as refused:
        await signer.sign(b"{}")
    assert refused.value.retryable


async def test_a_plan_for_a_key_that_is_elsewhere_signs_nothing(signers: Signers) -> None:
    signer = await signers.signing()
    await signer.follow(KeyPlan(Key().kid, (), rotation_due=False))
    with pytest.raises(SigningUnavailable, match="no key signs"):
        await signer.sign(b"{}")


async def test_a_key_that_a_person_adds_is_found(signers: Signers) -> None:
    signer = signers.open()
    assert len(await signer.keys()) == 0
    await signers.add_key()
    assert len(await signer.keys()) == 1
    assert await signers.open().keys() == await signer.keys()


async def test_a_rotation_makes_a_key_unless_there_is_one_besides_those_known(signers: Signers) -> None:
    signer, other = signers.open(), signers.open()
    first = await signer.rotate(known=[])
    assert await other.rotate(known=[]) == first
    second = await other.rotate(known=[first.kid])
    assert second != first
    third = await signer.rotate()
    assert {key.kid for key in await signer.keys()} == {first.kid, second.kid, third.kid}


async def test_a_retired_key_is_destroyed_and_a_second_time_does_no_harm(signers: Signers) -> None:
    first, other = signers.open(), signers.open()
    old, new = await first.rotate(), await first.rotate()
    for signer in (first, other):
        await signer.keys()
        await signer.follow(KeyPlan(old.kid, (), rotation_due=False))
    for signer in (first, other):
        await signer.follow(KeyPlan(new.kid, (old.kid,), rotation_due=False))
        assert parse_token(await signer.sign(b"{}")).kid == new.kid
        assert [key.kid for key in await signer.keys()] == [new.kid]


async def test_tokens_of_both_signers_verify_alike_and_unknown_or_revoked_keys_are_refused(
    signers: Signers, tmp_path: Path
) -> None:
    ours, pem = await signers.signing(), await pem_signers(tmp_path / "another").signing()
    document = jwks([*await ours.keys(), *await pem.keys()])
    clock = Clock()
    verifier = Verifier(lambda: shown(document), TOKENS, clock=clock, monotonic=clock)
    tokens = [await mint(signer, CLAIMS) for signer in (ours, pem)]
    assert [await verifier.verify(token) for token in tokens] == [CLAIMS, CLAIMS]
    unpublished = Key().sign(encode(CLAIMS))
    assert await reason(verifier, unpublished) == Reason.UNKNOWN_KEY
    document["keys"] = [Key().jwk]
    clock.now += 6 * TOKENS.refresh_floor_seconds
    await reason(verifier, unpublished)  # makes it fetch the keys again
    assert [await reason(verifier, token) for token in tokens] == [Reason.UNKNOWN_KEY] * 2


async def test_a_token_with_another_payload_is_refused(signers: Signers) -> None:
    signer = await signers.signing()
    document = jwks(await signer.keys())
    verifier = Verifier(lambda: shown(document), TOKENS, clock=Clock())
    header, _, signature = (await mint(signer, CLAIMS)).split(".")
    other = (await signer.sign(b'{"iss": "somebody"}')).split(".")[1]
    assert await reason(verifier, f"{header}.{other}.{signature}") == Reason.BAD_SIGNATURE


async def test_a_new_key_signs_after_the_overlap_and_a_revoked_one_is_replaced(signers: Signers, state_db: str) -> None:
    """All of it decided by the state database, as for every replica."""
    at_once = timedelta(seconds=0)
    async with open_pool(state_db, name="test", max_size=2) as pool:
        signer = signers.open()
        first = (await maintain_keys(pool, signer, TOKENS)).signing
        assert first is not None
        await signers.add_key()
        assert (await maintain_keys(pool, signer, TOKENS)).signing == first, "the new one waits for the overlap"
        assert len((await published(pool))["keys"]) == 2
        plan = await update_keys(pool, await signer.keys(), overlap=at_once, rotate_after=timedelta(days=30))
        await signer.follow(plan)
        second = plan.signing
        assert second not in {None, first}
        assert parse_token(await signer.sign(b"{}")).kid == second
        await revoke(pool, str(second))
        assert second not in [key["kid"] for key in (await published(pool))["keys"]]
        await maintain_keys(pool, signer, TOKENS)
        assert second not in {key.kid for key in await signer.keys()}


def jwks(keys: Sequence[PublicKey]) -> dict[str, Any]:
    return {"keys": [dict(key.jwk) for key in keys]}


async def shown(document: dict[str, Any]) -> dict[str, Any]:
    return document


async def reason(verifier: Verifier, token: str) -> Reason:
    with pytest.raises(TokenRefused) as refused:
        await verifier.verify(token)
    return refused.value.reason
