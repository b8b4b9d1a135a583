"""A verifier accepts tokens of published keys only, fetches keys at a bounded rate, and caches them."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import itertools
import json
import math
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from tests.support.identity.tokens import CLAIMS, ISSUER, NOW, TASK, Clock, Key, as_json, b64
from tracelake.capability import jws, keyset, verifier
from tracelake.capability.claims import Claims, encode
from tracelake.capability.jws import MAX_TOKEN_CHARS, is_canonical, key_of, thumbprint
from tracelake.capability.refusal import Reason, TokenRefused
from tracelake.capability.verifier import Verifier
from tracelake.errors import InvalidRequest, ServiceUnavailable, Unauthenticated
from tracelake.settings import TokenSettings

pytestmark = pytest.mark.anyio

KEY, OTHER, UNKNOWN = Key(), Key(), Key()
SETTINGS = TokenSettings(refresh_floor_seconds=5, overlap_seconds=10, remembered=100)
GOOD = KEY.sign(encode(CLAIMS))


class Publisher:
    """A JWKS endpoint that counts, and can be slow, broken or empty."""

    def __init__(self, *keys: Key) -> None:
        self.keys = list(keys)
        self.fetches = 0
        self.fault: Exception | None = None
        self.gate: asyncio.Event | None = None
        self.fetched = asyncio.Event()

    async def __call__(self) -> dict[str, Any]:
        self.fetches += 1
        self.fetched.set()
        document = {"keys": [key.jwk for key in self.keys]}  # as of the begin, as a slow server has it
        if self.gate is not None:
            await self.gate.wait()
        if self.fault is not None:
            raise self.fault
        return document


def make(publisher: Publisher, clock: Clock | None = None, settings: TokenSettings = SETTINGS) -> Verifier:
    clock = clock or Clock()
    return Verifier(publisher, settings, clock=clock, monotonic=clock)


async def reason_of(checked: Verifier, token: str) -> Reason:
    with pytest.raises(TokenRefused) as refused:
        await checked.verify(token)
    return refused.value.reason


# Hostile tokens --------------------------------------------------------------------------------------------------

PAYLOAD: dict[str, Any] = json.loads(encode(CLAIMS))
HEADER = {"alg": "ES256", "kid": KEY.kid, "typ": "JWT"}


def under(header: Any, key: Key = KEY) -> str:
    """A good payload and a good signature under this header."""
    return key.sign_with(header if isinstance(header, bytes) else as_json(header), encode(CLAIMS))


def saying(**changed: Any) -> str:
    """Well signed, with these claims changed."""
    return KEY.sign(as_json(PAYLOAD | changed))


def without(claim: str) -> str:
    return KEY.sign(as_json({name: value for name, value in PAYLOAD.items() if name != claim}))


def granting(index: int = 0, **changed: Any) -> str:
    datasets = [dict(dataset) for dataset in PAYLOAD["datasets"]]
    datasets[index] |= changed
    return saying(datasets=datasets)


def text(before: str, after: str) -> str:
    """Well signed, with this in place of that in the payload's text."""
    payload = encode(CLAIMS).decode()
    assert before in payload
    return KEY.sign(payload.replace(before, after, 1).encode())


def hs256(secret: bytes) -> str:
    signed = f"{b64(as_json(HEADER | {'alg': 'HS256'}))}.{b64(encode(CLAIMS))}"
    return f"{signed}.{b64(hmac.digest(secret, signed.encode(), hashlib.sha256))}"


def with_segment(index: int, change: Callable[[str], str]) -> str:
    segments = GOOD.split(".")
    segments[index] = change(segments[index])
    return ".".join(segments)


def spare_bits(signature: str) -> str:
    """The same 64 bytes in another spelling: the last character carries four bits that are not used."""
    return signature[:-1] + chr(ord(signature[-1]) + 1)


def as_der(signature: str) -> str:
    raw = jwt.utils.base64url_decode(signature)
    return b64(encode_dss_signature(int.from_bytes(raw[:32]), int.from_bytes(raw[32:])))


NONE = f"{b64(as_json(HEADER | {'alg': 'none'}))}.{b64(encode(CLAIMS))}."
USER = jwt.encode(
    {"iss": "trace-local", "aud": "trace", "sub": "local|admin", "iat": NOW, "exp": NOW + 60}, KEY.private, "ES256"
)

HOSTILE: dict[str, tuple[str, Reason]] = {
    # The shape.
    "nothing": ("", Reason.MISSING),
    "one segment": ("x", Reason.MALFORMED),
    "two segments": (GOOD.rpartition(".")[0], Reason.MALFORMED),
    "four segments": (GOOD + ".x", Reason.MALFORMED),
    "five segments, as an encrypted token": (GOOD + ".x.y", Reason.MALFORMED),
    "a worker token": ("pT3vN0pe_worker_token_of_256_bits_0123456789ab", Reason.MALFORMED),
    "a user's token": (USER, Reason.BAD_KEY_ID),
    "with a scheme in front": ("Bearer " + GOOD, Reason.MALFORMED),
    "white space behind": (GOOD + "\n", Reason.MALFORMED),
    "not ASCII": (GOOD.replace(".", "\u2024"), Reason.MALFORMED),
    "full-width dots": (GOOD.replace(".", "\uff0e"), Reason.MALFORMED),
    "lone surrogate": (GOOD + "\ud800", Reason.MALFORMED),
    "NUL": (GOOD + "\0", Reason.MALFORMED),
    "padded base64": (with_segment(2, lambda s: s + "=="), Reason.MALFORMED),
    "base64 of the other alphabet": (with_segment(0, lambda s: s[:-1] + "+"), Reason.MALFORMED),
    "line break in base64": (with_segment(1, lambda s: s[:8] + "\n" + s[8:]), Reason.MALFORMED),
    "spare bits in base64": (with_segment(2, spare_bits), Reason.MALFORMED),
    "impossible length of base64": (with_segment(1, lambda s: s[: len(s) // 4 * 4 + 1]), Reason.MALFORMED),
    "oversize": ("a" * (MAX_TOKEN_CHARS + 1), Reason.TOO_LARGE),
    "oversize header": (under(HEADER | {"typ": "x" * 600}), Reason.BAD_HEADER),
    # The header.
    "header is no JSON": (under(b"{"), Reason.MALFORMED),
    "header is not UTF-8": (under(b'{"alg":"\xff"}'), Reason.MALFORMED),
    "header is a list": (under([HEADER]), Reason.MALFORMED),
    "header is nested deeply": (under(b"[" * 350), Reason.MALFORMED),
    "header says alg twice": (under(b'{"alg":"none",' + as_json(HEADER)[1:]), Reason.REPEATED_KEY),
    "header says kid twice": (under(as_json(HEADER)[:-1] + b',"kid":"x"}'), Reason.REPEATED_KEY),
    "alg none": (NONE, Reason.BAD_ALGORITHM),
    "alg NoNe": (under(HEADER | {"alg": "NoNe"}), Reason.BAD_ALGORITHM),
    "alg es256": (under(HEADER | {"alg": "es256"}), Reason.BAD_ALGORITHM),
    "alg ES384": (under(HEADER | {"alg": "ES384"}), Reason.BAD_ALGORITHM),
    "alg RS256": (under(HEADER | {"alg": "RS256"}), Reason.BAD_ALGORITHM),
    "alg a list": (under(HEADER | {"alg": ["ES256"]}), Reason.BAD_ALGORITHM),
    "alg missing": (under({"kid": KEY.kid}), Reason.BAD_ALGORITHM),
    "HS256 by the public key's PEM": (hs256(KEY.public_pem), Reason.BAD_ALGORITHM),
    "HS256 by the public key's JWK": (hs256(as_json(KEY.jwk)), Reason.BAD_ALGORITHM),
    "HS256 by nothing": (hs256(b""), Reason.BAD_ALGORITHM),
    "crit unknown": (under(HEADER | {"crit": ["exp-soon"], "exp-soon": 1}), Reason.BAD_HEADER),
    "crit empty": (under(HEADER | {"crit": []}), Reason.BAD_HEADER),
    "b64 off": (under(HEADER | {"b64": False, "crit": ["b64"]}), Reason.BAD_HEADER),
    "jku": (under(HEADER | {"jku": "https://evil.example/jwks"}), Reason.BAD_HEADER),
    "x5u": (under(HEADER | {"x5u": "https://evil.example/x"}), Reason.BAD_HEADER),
    "x5c": (under(HEADER | {"x5c": ["AA"]}), Reason.BAD_HEADER),
    "jwk in the header": (
        under({"alg": "ES256", "kid": UNKNOWN.kid, "jwk": {"kty": "EC"}}, UNKNOWN),
        Reason.BAD_HEADER,
    ),
    "zip": (under(HEADER | {"zip": "DEF"}), Reason.BAD_HEADER),
    "typ of another kind": (under(HEADER | {"typ": "at+jwt"}), Reason.BAD_HEADER),
    "kid missing": (under({"alg": "ES256", "typ": "JWT"}), Reason.BAD_KEY_ID),
    "kid null": (under(HEADER | {"kid": None}), Reason.BAD_KEY_ID),
    "kid a number": (under(HEADER | {"kid": 0}), Reason.BAD_KEY_ID),
    "kid a list": (under(HEADER | {"kid": [KEY.kid]}), Reason.BAD_KEY_ID),
    "kid empty": (under(HEADER | {"kid": ""}), Reason.BAD_KEY_ID),
    "kid a path": (under(HEADER | {"kid": "../../../../dev/null"}), Reason.BAD_KEY_ID),
    "kid a path of the right length": (under(HEADER | {"kid": "/" * 43}), Reason.BAD_KEY_ID),
    "kid SQL": (under(HEADER | {"kid": "x' UNION SELECT 'AAAA' --"}), Reason.BAD_KEY_ID),
    "kid with a line break": (under(HEADER | {"kid": KEY.kid + "\n"}), Reason.BAD_KEY_ID),
    "kid unknown": (under(HEADER | {"kid": UNKNOWN.kid}, UNKNOWN), Reason.UNKNOWN_KEY),
    # The signature.
    "signed by an unknown key under a known kid": (under(HEADER, UNKNOWN), Reason.BAD_SIGNATURE),
    "signed by one published key under another's kid": (under(HEADER, OTHER), Reason.BAD_SIGNATURE),
    "no signature": (with_segment(2, lambda _: ""), Reason.BAD_SIGNATURE),
    "half a signature": (with_segment(2, lambda s: s[:40]), Reason.BAD_SIGNATURE),
    "a signature of zeros": (with_segment(2, lambda _: b64(bytes(64))), Reason.BAD_SIGNATURE),
    "a signature of ones": (with_segment(2, lambda _: b64(b"\xff" * 64)), Reason.BAD_SIGNATURE),
    "a signature in DER": (with_segment(2, as_der), Reason.BAD_SIGNATURE),
    "another payload under the signature": (
        with_segment(1, lambda _: b64(as_json(PAYLOAD | {"attempt": 2}))),
        Reason.BAD_SIGNATURE,
    ),
    "the header rewritten under the signature": (
        with_segment(0, lambda _: b64(json.dumps(HEADER).encode())),
        Reason.BAD_SIGNATURE,
    ),
    # Who it is for, and from.
    "iss of another": (saying(iss="https://evil.example"), Reason.WRONG_ISSUER),
    "iss of the user's issuer": (saying(iss="trace-local"), Reason.WRONG_ISSUER),
    "iss a prefix": (saying(iss=ISSUER + "-2"), Reason.WRONG_ISSUER),
    "iss a list": (saying(iss=[ISSUER]), Reason.BAD_CLAIMS),
    "iss null": (saying(iss=None), Reason.BAD_CLAIMS),
    "aud of the Gateway": (saying(aud="trace"), Reason.WRONG_AUDIENCE),
    "aud a list": (saying(aud=["trace.task"]), Reason.WRONG_AUDIENCE),
    "aud a list with others": (saying(aud=["trace.task", "trace"]), Reason.WRONG_AUDIENCE),
    "aud null": (saying(aud=None), Reason.WRONG_AUDIENCE),
    "sub of another task": (saying(sub="task:00000000-0000-4000-8000-00000000000b"), Reason.BAD_CLAIMS),
    "sub without its kind": (saying(sub=str(TASK)), Reason.BAD_CLAIMS),
    "sub a user": (saying(sub="local|admin"), Reason.BAD_CLAIMS),
    "task_id of another task": (saying(task_id="00000000-0000-4000-8000-00000000000b"), Reason.BAD_CLAIMS),
    # When.
    "exp past": (saying(exp=NOW - 1), Reason.EXPIRED),
    "exp this very second": (saying(exp=NOW), Reason.EXPIRED),
    "exp before iat": (saying(exp=NOW - 11), Reason.BAD_CLAIMS),
    "exp in two days": (saying(exp=NOW + 2 * 86400), Reason.LIVES_TOO_LONG),
    "exp in 24 hours, and issued a while ago": (saying(exp=NOW + 86400), Reason.LIVES_TOO_LONG),
    "exp in the year 5138": (saying(exp=99_999_999_999), Reason.LIVES_TOO_LONG),
    "exp beyond any clock": (saying(exp=10**30), Reason.BAD_CLAIMS),
    "exp of many digits": (text(f'"exp":{NOW + 890}', '"exp":' + "9" * 5000), Reason.MALFORMED),
    "exp negative": (saying(exp=-1), Reason.BAD_CLAIMS),
    "exp with a fraction": (saying(exp=NOW + 890.5), Reason.MALFORMED),
    "exp a whole float": (text(f'"exp":{NOW + 890}', f'"exp":{NOW + 890}.0'), Reason.MALFORMED),
    "exp in exponents": (text(f'"exp":{NOW + 890}', '"exp":18e8'), Reason.MALFORMED),
    "exp NaN": (text(f'"exp":{NOW + 890}', '"exp":NaN'), Reason.MALFORMED),
    "exp Infinity": (text(f'"exp":{NOW + 890}', '"exp":Infinity'), Reason.MALFORMED),
    "exp a string": (saying(exp=str(NOW + 890)), Reason.BAD_CLAIMS),
    "exp true": (saying(exp=True), Reason.BAD_CLAIMS),
    "exp null": (saying(exp=None), Reason.BAD_CLAIMS),
    "iat ahead": (saying(iat=NOW + 61), Reason.NOT_YET_VALID),
    "iat a string": (saying(iat=str(NOW)), Reason.BAD_CLAIMS),
    "iat true": (saying(iat=True), Reason.BAD_CLAIMS),
    "iat negative": (saying(iat=-1), Reason.BAD_CLAIMS),
    "nbf ahead": (saying(nbf=NOW + 3600), Reason.BAD_CLAIMS),
    "nbf past, which is no claim of ours either": (saying(nbf=NOW - 3600), Reason.BAD_CLAIMS),
    # What.
    "payload is a list": (KEY.sign(as_json([PAYLOAD])), Reason.MALFORMED),
    "payload is null": (KEY.sign(b"null"), Reason.MALFORMED),
    "payload is empty": (KEY.sign(b""), Reason.MALFORMED),
    "payload has a BOM": (KEY.sign(b"\xef\xbb\xbf" + encode(CLAIMS)), Reason.MALFORMED),
    "payload is UTF-16": (KEY.sign(encode(CLAIMS).decode().encode("utf-16")), Reason.MALFORMED),
    "payload is nested deeply": (KEY.sign(b"[" * 20_000), Reason.MALFORMED),
    "a claim said twice": (text('"attempt":1', '"attempt":1,"attempt":2'), Reason.REPEATED_KEY),
    "a claim said twice alike": (text('"attempt":1', '"attempt":1,"attempt":1'), Reason.REPEATED_KEY),
    "a claim said twice by an escape": (text('"attempt":1', '"attempt":1,"\\u0061ttempt":2'), Reason.REPEATED_KEY),
    "a dataset's field said twice": (text('"commit":7', '"commit":7,"commit":9'), Reason.REPEATED_KEY),
    "an unknown claim": (saying(admin=True), Reason.BAD_CLAIMS),
    "an unknown field of a dataset": (granting(columns=["a"]), Reason.BAD_CLAIMS),
    "an unknown kind of prefix": (saying(s3=PAYLOAD["s3"] | {"delete": []}), Reason.BAD_CLAIMS),
    "jti not an id": (saying(jti="1"), Reason.BAD_CLAIMS),
    "jti empty": (saying(jti=""), Reason.BAD_CLAIMS),
    "org_id null": (saying(org_id=None), Reason.BAD_CLAIMS),
    "org_id in another spelling": (saying(org_id=PAYLOAD["org_id"].replace("-", "")), Reason.BAD_CLAIMS),
    "task_id in capitals": (saying(task_id=str(TASK).upper()), Reason.BAD_CLAIMS),
    "attempt 0": (saying(attempt=0), Reason.BAD_CLAIMS),
    "attempt true": (saying(attempt=True), Reason.BAD_CLAIMS),
    "attempt a string": (saying(attempt="1"), Reason.BAD_CLAIMS),
    "attempt past a bigint": (saying(attempt=2**63), Reason.BAD_CLAIMS),
    "datasets an object": (saying(datasets={}), Reason.BAD_CLAIMS),
    "datasets null": (saying(datasets=None), Reason.BAD_CLAIMS),
    "dataset null": (saying(datasets=[None]), Reason.BAD_CLAIMS),
    "access to administer": (granting(access="admin"), Reason.BAD_CLAIMS),
    "read without a commit": (granting(commit=None), Reason.BAD_CLAIMS),
    "write with a commit": (granting(1, commit=1), Reason.BAD_CLAIMS),
    "commit negative": (granting(commit=-1), Reason.BAD_CLAIMS),
    "a name that is SQL": (granting(name='x"; DROP VIEW blocks; --'), Reason.BAD_CLAIMS),
    "a name with a line break": (granting(name="blocks\n"), Reason.BAD_CLAIMS),
    "an empty storage_ref": (granting(storage_ref=""), Reason.BAD_CLAIMS),
    "storage_ref a lone surrogate": (granting(storage_ref="s3://lake/\ud800/"), Reason.BAD_CLAIMS),
    "storage_ref with NUL": (granting(storage_ref="s3://lake/\0/"), Reason.BAD_CLAIMS),
    **{f"without {claim}": (without(claim), Reason.BAD_CLAIMS) for claim in PAYLOAD if claim != "aud"},
    "without aud": (without("aud"), Reason.WRONG_AUDIENCE),
    **{
        f"prefix {prefix!r}": (saying(s3={"read": [], "write": [prefix]}), Reason.BAD_CLAIMS)
        for prefix in (
            "",
            "/",
            "s3://",
            "s3://lake",
            "s3://lake/",
            "s3:///org/",
            "s3://lake//",
            "s3://lake/org",
            "s3://lake/org//x/",
            "s3://lake/../",
            "s3://lake/org/../x/",
            "s3://lake/./x/",
            "s3://lake/org/*/",
            "s3://lake/or?/",
            "s3://lake/${aws:username}/",
            "s3://lake/%2e%2e%2f/",
            "s3://lake/%2A/",
            "s3://lake\\org/",
            "s3://lake/a\nb/",
            "s3://lake/a\u200bb/",
            "s3://lake/a\u202eb/",
            's3://lake/a"b/',
            "S3://lake/org/",
            "s3a://lake/org/",
            "file://lake/org/",
            "s3://Lake/org/",
            "s3://lake:9000/org/",
            "s3://user@lake/org/",
            "s3://lake./org/",
            "s3://la..ke/org/",
            "s3://lake/org/\n",
            7,
            None,
        )
    },
}


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


# The pace of fetches ---------------------------------------------------------------------------------------------


COUNT = itertools.count()


def made_up() -> str:
    """A token with an unknown key id, another one each time; all but its signature is as it should be."""
    kid = b64(hashlib.sha256(str(next(COUNT)).encode()).digest())
    return with_segment(0, lambda _: b64(as_json(HEADER | {"kid": kid})))


async def fetching(publisher: Publisher) -> None:
    await publisher.fetched.wait()


async def test_a_flood_of_random_kids_makes_one_fetch_each_floor() -> None:
    publisher, clock = Publisher(KEY), Clock()
    checked = make(publisher, clock)
    for tick in range(600):
        clock.now = NOW + tick / 10
        for _ in range(5):
            assert await reason_of(checked, made_up()) is Reason.UNKNOWN_KEY
    assert publisher.fetches == 1 + 59 // 5
    assert await checked.verify(GOOD) == CLAIMS


async def test_kids_that_cannot_be_ours_make_no_fetch_at_all() -> None:
    publisher = Publisher(KEY)
    checked = make(publisher)
    for case in ("kid a path", "kid SQL", "kid missing", "alg none", "jku", "oversize"):
        with pytest.raises(TokenRefused):
            await checked.verify(HOSTILE[case][0])
    assert publisher.fetches == 0


async def test_all_waiting_calls_share_one_fetch() -> None:
    publisher = Publisher(KEY)
    publisher.gate = asyncio.Event()
    checked = make(publisher)
    good = [asyncio.create_task(checked.verify(GOOD)) for _ in range(200)]
    bad = [asyncio.create_task(checked.verify(made_up())) for _ in range(200)]
    await fetching(publisher)
    publisher.gate.set()
    assert await asyncio.gather(*good) == [CLAIMS] * 200
    refused = await asyncio.gather(*bad, return_exceptions=True)
    assert all(isinstance(item, TokenRefused) and item.reason is Reason.UNKNOWN_KEY for item in refused)
    assert publisher.fetches == 1


async def test_a_canceled_call_does_not_stop_the_fetch_for_others() -> None:
    publisher = Publisher(KEY)
    publisher.gate = asyncio.Event()
    checked = make(publisher)
    first = asyncio.create_task(checked.verify(GOOD))
    second = asyncio.create_task(checked.verify(GOOD))
    await fetching(publisher)
    first.cancel()
    await asyncio.sleep(0)
    publisher.gate.set()
    assert await second == CLAIMS
    assert publisher.fetches == 1


async def test_a_key_published_while_a_slow_fetch_was_under_way_is_found_by_a_second_one() -> None:
    publisher, clock = Publisher(OTHER), Clock()
    checked = make(publisher, clock)
    publisher.gate = asyncio.Event()
    waiting = asyncio.create_task(checked.verify(GOOD))
    await fetching(publisher)
    publisher.keys.append(KEY)
    clock.now += SETTINGS.overlap_seconds
    publisher.gate.set()
    assert await waiting == CLAIMS
    assert publisher.fetches == 2


async def test_an_unknown_key_waits_for_two_fetches_at_most_however_slow_they_are() -> None:
    publisher, clock = Publisher(KEY), Clock()

    async def slow() -> dict[str, Any]:
        clock.now += 60  # longer than the floor, so the next one is always allowed
        return await publisher()

    checked = Verifier(slow, SETTINGS, clock=clock, monotonic=clock)
    assert await reason_of(checked, HOSTILE["kid unknown"][0]) is Reason.UNKNOWN_KEY
    assert publisher.fetches == 2


FAULTS = [ServiceUnavailable("away"), RuntimeError("?"), OSError("reset"), TimeoutError(), KeyError("keys")]


@pytest.mark.parametrize("fault", FAULTS)
async def test_while_keys_cannot_be_fetched_a_good_token_is_not_called_bad(fault: Exception) -> None:
    publisher, clock = Publisher(KEY), Clock()
    publisher.fault = fault
    checked = make(publisher, clock)
    for _ in range(100):
        with pytest.raises(ServiceUnavailable) as refused:
            await checked.verify(GOOD)
        assert refused.value.retryable
    assert publisher.fetches == 1
    publisher.fault = None
    clock.now += 5
    assert await checked.verify(GOOD) == CLAIMS


@pytest.mark.parametrize(
    "document", [{"keys": []}, {}, {"keys": None}, {"keys": [7]}, [], None, {"keys": [{"kty": "RSA"}]}]
)
async def test_a_document_without_keys_is_no_answer_and_takes_none_away(document: Any) -> None:
    publisher, clock = Publisher(KEY), Clock()
    answers: list[Any] = [await publisher()]

    async def fetch() -> Any:
        return answers[-1]

    checked = Verifier(fetch, SETTINGS, clock=clock, monotonic=clock)
    assert await checked.verify(GOOD) == CLAIMS
    answers.append(document)
    clock.now += 5
    with pytest.raises(ServiceUnavailable):
        await checked.verify(HOSTILE["kid unknown"][0])
    assert await checked.verify(saying()) == CLAIMS


async def test_a_fetch_that_hangs_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyset, "FETCH_SECONDS", 0.01)
    publisher = Publisher(KEY)
    publisher.gate = asyncio.Event()
    with pytest.raises(ServiceUnavailable):
        await make(publisher).verify(GOOD)


async def test_keys_of_another_kind_beside_ours_do_no_harm() -> None:
    publisher = Publisher(KEY)

    async def fetch() -> dict[str, Any]:
        document = await publisher()
        return {"keys": [{"kty": "OKP", "crv": "Ed25519", "x": "AA", "kid": "k"}, *document["keys"]]}

    assert await Verifier(fetch, SETTINGS, clock=Clock(), monotonic=Clock()).verify(GOOD) == CLAIMS


async def test_an_old_set_is_fetched_in_the_background_and_a_revoked_key_is_dropped() -> None:
    publisher, clock = Publisher(KEY, OTHER), Clock()
    checked = make(publisher, clock)
    assert await checked.verify(GOOD) == CLAIMS
    publisher.keys = [OTHER]
    clock.now += keyset.OLD_SECONDS
    publisher.gate = asyncio.Event()
    for _ in range(3):
        assert await checked.verify(GOOD) == CLAIMS
    publisher.gate.set()
    await settled(checked)
    assert await reason_of(checked, GOOD) is Reason.UNKNOWN_KEY
    assert publisher.fetches == 2


async def test_an_old_set_that_cannot_be_fetched_again_stays_good_and_is_tried_each_floor() -> None:
    publisher, clock = Publisher(KEY), Clock()
    checked = make(publisher, clock)
    await checked.verify(GOOD)
    publisher.fault = OSError("away")
    clock.now += keyset.OLD_SECONDS
    for _ in range(10):
        clock.now += 1
        assert await checked.verify(GOOD) == CLAIMS
        await settled(checked)
    assert publisher.fetches == 1 + 2


async def test_closing_ends_a_fetch_under_way() -> None:
    publisher = Publisher(KEY)
    checked = make(publisher)
    await checked.close()
    publisher.gate = asyncio.Event()
    waiting = asyncio.create_task(checked.verify(GOOD))
    await fetching(publisher)
    await checked.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def settled(checked: Verifier) -> None:
    if flight := checked._keys._under_way():
        await asyncio.wait([flight])


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


def replace_settings(**changed: Any) -> TokenSettings:
    return TokenSettings(**(SETTINGS.model_dump() | changed))
