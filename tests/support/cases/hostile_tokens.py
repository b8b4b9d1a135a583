"""Tokens that are not exactly ones that we signed, and the reason for which a verifier refuses each."""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from tests.support.identity.tokens import CLAIMS, ISSUER, NOW, TASK, Key, as_json, b64
from tests.support.identity.verifiers import (
    GOOD,
    HEADER,
    KEY,
    OTHER,
    PAYLOAD,
    UNKNOWN,
    saying,
    with_segment,
)
from tracelake.capability.claims import encode
from tracelake.capability.jws import MAX_TOKEN_CHARS
from tracelake.capability.refusal import Reason


def under(header: Any, key: Key = KEY) -> str:
    """A good payload and a good signature under this header."""
    return key.sign_with(header if isinstance(header, bytes) else as_json(header), encode(CLAIMS))


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
