"""A verifier refuses every token that is not exactly one that we signed, each for its reason."""

from __future__ import annotations

import base64
import hashlib
import json
import traceback
from dataclasses import replace
from typing import Any

import jwt
import pytest

from tests.support.cases.hostile_tokens import HOSTILE, under
from tests.support.identity.tokens import CLAIMS, ISSUER, NOW, b64
from tests.support.identity.verifiers import (
    GOOD,
    HEADER,
    KEY,
    OTHER,
    PAYLOAD,
    Publisher,
    make,
    reason_of,
    replace_settings,
    saying,
)
from tracelake.capability.claims import encode
from tracelake.capability.jws import MAX_TOKEN_CHARS, is_canonical, key_of, thumbprint
from tracelake.capability.refusal import Reason, TokenRefused
from tracelake.errors import InvalidRequest, Unauthenticated

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("case", HOSTILE)
async def test_a_hostile_token_is_refused_for_its_reason_and_never_repeated(case: str) -> None:
    token, reason = HOSTILE[case]
    checked = make(Publisher(KEY, OTHER))
    with pytest.raises(Unauthenticated) as refused:
        await checked.verify(token)
    assert isinstance(refused.value, TokenRefused)
    assert refused.value.reason is reason
    said = json.dumps(refused.value.as_dict()) + "".join(traceback.format_exception(refused.value))
    assert f'"reason": "{reason.value}"' in said
    assert not any(piece in said for piece in (token, *token.split(".")) if len(piece) > 12)
    assert "evil" not in said
    assert not checked._remembered


async def test_no_header_at_all_is_refused() -> None:
    with pytest.raises(TokenRefused) as refused:
        await make(Publisher(KEY)).verify(None)
    assert refused.value.reason is Reason.MISSING


async def test_the_good_token_that_the_hostile_ones_were_made_from_holds() -> None:
    assert await make(Publisher(KEY, OTHER)).verify(GOOD) == CLAIMS
    assert await make(Publisher(KEY, OTHER)).verify(under(HEADER)) == CLAIMS
    assert await make(Publisher(KEY, OTHER)).verify(saying()) == CLAIMS


async def test_a_token_may_be_issued_by_a_clock_a_little_ahead_and_live_a_whole_day() -> None:
    assert await make(Publisher(KEY)).verify(saying(iat=NOW + 60, exp=NOW + 60 + 86400))


async def test_the_longest_lifetime_follows_the_setting() -> None:
    checked = make(Publisher(KEY), settings=replace_settings(max_life_seconds=600))
    assert await reason_of(checked, GOOD) is Reason.LIVES_TOO_LONG


async def test_a_capability_and_the_reference_library_understand_each_other() -> None:
    key = jwt.PyJWK(KEY.jwk)
    assert (
        jwt.decode(
            GOOD,
            key,
            ["ES256"],
            audience="trace.task",
            issuer=ISSUER,
            options={"verify_exp": False, "verify_iat": False},
        )
        == PAYLOAD
    )
    theirs = (jwt.encode(PAYLOAD, KEY.private, "ES256", {"kid": KEY.kid}) for _ in range(64))
    canonical = next(token for token in theirs if is_canonical(b64_read(token.rpartition(".")[2])))
    assert await make(Publisher(KEY)).verify(canonical) == CLAIMS


def b64_read(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


UNTIMED: Any = {"verify_aud": False, "verify_exp": False, "verify_iat": False}


async def test_only_one_of_two_equivalent_ecdsa_signatures_is_accepted() -> None:
    """The other needs no key: a token that was revoked, or counted, by its text would be accepted again."""
    for number in range(32):
        token = KEY.sign(encode(CLAIMS))
        text, _, signature = token.rpartition(".")
        raw = b64_read(signature)
        assert is_canonical(raw), number
        order = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
        other_form = f"{text}.{b64(raw[:32] + (order - int.from_bytes(raw[32:])).to_bytes(32))}"
        jwt.decode(other_form, jwt.PyJWK(KEY.jwk), ["ES256"], options=UNTIMED)
        assert await reason_of(make(Publisher(KEY)), other_form) is Reason.BAD_SIGNATURE
        assert await make(Publisher(KEY)).verify(token) == CLAIMS


def test_claims_too_large_for_a_header_are_refused_before_they_are_signed() -> None:
    granted = CLAIMS.datasets[0]
    with pytest.raises(InvalidRequest, match="does not fit"):
        encode(replace(CLAIMS, datasets=(granted,) * 200))
    most = replace(CLAIMS, datasets=(granted,) * 100)
    assert len(KEY.sign(encode(most))) <= MAX_TOKEN_CHARS


@pytest.mark.parametrize(
    "change",
    [
        {"kty": "RSA"},
        {"crv": "P-384"},
        {"use": "enc"},
        {"alg": "HS256"},
        {"kid": OTHER.kid},
        {"x": 1},
        {"x": OTHER.jwk["x"]},
        {"y": ""},
        {"kid": None},
    ],
)
def test_a_key_that_is_not_what_it_says_is_not_used(change: dict[str, Any]) -> None:
    assert key_of(KEY.jwk) is not None
    assert key_of(KEY.jwk | change) is None


def test_a_point_off_the_curve_is_no_key_even_under_its_own_name() -> None:
    x, y = KEY.jwk["x"], OTHER.jwk["y"]
    assert key_of(KEY.jwk | {"x": x, "y": y, "kid": thumbprint(x, y)}) is None


def test_a_kid_is_the_thumbprint_of_rfc_7638() -> None:
    required = {name: KEY.jwk[name] for name in ("crv", "kty", "x", "y")}
    assert KEY.kid == b64(hashlib.sha256(json.dumps(required, separators=(",", ":"), sort_keys=True).encode()).digest())
