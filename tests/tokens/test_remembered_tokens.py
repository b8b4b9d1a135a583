"""A verifier proves a token once and remembers it, within bounds, until it expires."""

from __future__ import annotations

import hashlib
import math
import time
from dataclasses import replace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from tests.support.identity.tokens import CLAIMS, Clock
from tests.support.identity.verifiers import GOOD, KEY, Publisher, make, reason_of, replace_settings, saying
from tracelake.capability import jws, verifier
from tracelake.capability.claims import Claims, encode
from tracelake.capability.refusal import Reason
from tracelake.capability.verifier import Verifier
from tracelake.settings import TokenSettings

pytestmark = pytest.mark.anyio


# What is remembered ----------------------------------------------------------------------------------------------


@pytest.fixture
def proofs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The key of every signature that was really checked."""
    seen: list[str] = []
    real = jws.has_valid_signature

    def counting(token: Any, key: ec.EllipticCurvePublicKey) -> bool:
        seen.append(token.kid)
        return real(token, key)

    monkeypatch.setattr(verifier, "has_valid_signature", counting)
    return seen


async def test_a_token_is_proven_once_and_then_only_looked_up(proofs: list[str]) -> None:
    checked = make(Publisher(KEY))
    assert {await checked.verify(GOOD) for _ in range(50)} == {CLAIMS}
    assert len(proofs) == 1


async def test_a_remembered_token_ends_when_it_expires(proofs: list[str]) -> None:
    clock = Clock()
    checked = make(Publisher(KEY), clock)
    await checked.verify(GOOD)
    clock.now = CLAIMS.exp - 0.001
    await checked.verify(GOOD)
    clock.now = CLAIMS.exp
    assert await reason_of(checked, GOOD) is Reason.EXPIRED
    assert await reason_of(checked, GOOD) is Reason.EXPIRED
    assert len(proofs) == 2


def of_attempt(attempt: int) -> str:
    return KEY.sign(encode(replace(CLAIMS, attempt=attempt)))  # type: ignore[arg-type]


async def test_memory_is_bounded_and_keeps_what_is_used(proofs: list[str]) -> None:
    checked = make(Publisher(KEY), settings=replace_settings(remembered=3))
    tokens = [of_attempt(n) for n in range(1, 6)]
    for token in tokens[:3]:
        await checked.verify(token)
    await checked.verify(tokens[0])
    for token in tokens[3:]:
        await checked.verify(token)
    assert len(checked._remembered) == 3
    assert len(proofs) == 5
    await checked.verify(tokens[0])
    assert len(proofs) == 5
    await checked.verify(tokens[1])
    assert len(proofs) == 6


async def test_nothing_is_remembered_where_the_setting_says_so(proofs: list[str]) -> None:
    checked = make(Publisher(KEY), settings=replace_settings(remembered=0))
    await checked.verify(GOOD)
    await checked.verify(GOOD)
    assert len(proofs) == 2


async def test_what_a_replica_signed_itself_it_need_not_prove(proofs: list[str]) -> None:
    publisher = Publisher(KEY)
    checked = make(publisher)
    checked.remember(GOOD, CLAIMS)
    assert await checked.verify(GOOD) is CLAIMS
    assert (proofs, publisher.fetches) == ([], 0)


async def test_memory_holds_no_token() -> None:
    checked = make(Publisher(KEY))
    await checked.verify(GOOD)
    ((digest, claims),) = checked._remembered.items()
    assert digest == hashlib.sha256(GOOD.encode()).digest()
    assert isinstance(claims, Claims)


async def test_by_default_the_real_clocks_are_used() -> None:
    now = int(time.time())
    checked = Verifier(Publisher(KEY), TokenSettings())
    assert await reason_of(checked, saying(iat=now - 100, exp=now - 10)) is Reason.EXPIRED
    assert await checked.verify(saying(iat=now, exp=now + 600))
    assert math.isclose(checked._keys._began, time.monotonic(), abs_tol=60)
