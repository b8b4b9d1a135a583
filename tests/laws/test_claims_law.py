"""Claims come back from a token as they went in, and nothing that is not exactly them comes back at all."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any, Literal
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.identity.tokens import CLAIMS, Clock, Key
from tracelake.capability.claims import LONGEST_LIFE_SECONDS, Claims, decode, encode, life_of, new_claims, renewal_due
from tracelake.capability.refusal import Reason, TokenRefused
from tracelake.capability.verifier import Verifier
from tracelake.domain.access.grants import GrantedDataset, S3Prefixes
from tracelake.domain.ids import Attempt, CommitNumber, DatasetId, DatasetName, DatasetVersion, OrgId, TaskId
from tracelake.settings import TokenSettings

SETTINGS = settings(deadline=None, derandomize=True, database=None, max_examples=100)
KEY = Key()

LOWER, DIGITS = "abcdefghijklmnopqrstuvwxyz", "0123456789"
TEXT = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=40)
NUMBERS = st.integers(0, 2**63 - 1)
NAMES = st.text(LOWER + DIGITS + "_", max_size=20).map(lambda text: DatasetName("n" + text))
BUCKETS = st.text(LOWER + DIGITS + "-", min_size=1, max_size=12).map(lambda text: f"b{text}0")
SEGMENTS = st.text("AZaz09_.=-", min_size=1, max_size=12).filter(lambda text: text not in {".", ".."})
PREFIXES = st.builds(
    lambda bucket, path: f"s3://{bucket}/{'/'.join(path)}/", BUCKETS, st.lists(SEGMENTS, min_size=1, max_size=3)
)
ORGS, TASKS = st.uuids().map(OrgId), st.uuids().map(TaskId)
ATTEMPTS = st.integers(1, 2**63 - 1).map(Attempt)


@st.composite
def grants(draw: st.DrawFn) -> GrantedDataset:
    access: Literal["read", "write"] = "read" if draw(st.booleans()) else "write"
    return GrantedDataset(
        DatasetId(draw(st.uuids())),
        DatasetVersion(draw(st.uuids())),
        CommitNumber(draw(NUMBERS)) if access == "read" else None,
        draw(st.none() | NAMES),
        draw(TEXT),
        access,
    )


DATASETS = st.lists(grants(), max_size=3, unique_by=lambda grant: grant.name or grant.dataset_uuid).map(tuple)
S3 = st.builds(S3Prefixes, st.lists(PREFIXES, max_size=3).map(tuple), st.lists(PREFIXES, max_size=3).map(tuple))


@st.composite
def any_claims(draw: st.DrawFn) -> Claims:
    iat = draw(st.integers(0, 2**62))
    exp = iat + draw(st.integers(1, 2**62 - 1))
    return Claims(
        draw(TEXT), iat, exp, draw(st.uuids()), draw(ORGS), draw(TASKS), draw(ATTEMPTS), draw(DATASETS), draw(S3)
    )


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@SETTINGS
@given(any_claims())
def test_claims_come_back_as_they_went_in(claims: Claims) -> None:
    assert decode(encode(claims)) == claims


@SETTINGS
@given(any_claims())
def test_a_payload_names_its_task_twice_and_its_audience_once(claims: Claims) -> None:
    payload = json.loads(encode(claims))
    assert payload["sub"] == f"task:{claims.task_id}" == claims.sub
    assert UUID(payload["task_id"]) == claims.task_id
    assert payload["aud"] == "trace.task" == claims.aud


@SETTINGS
@given(DATASETS, S3, ATTEMPTS, st.none() | st.integers(0, 200_000), st.floats(1e9, 4e9))
def test_a_token_is_valid_for_its_audience_only(
    datasets: tuple[GrantedDataset, ...], s3: S3Prefixes, attempt: Attempt, timeout: int | None, now: float
) -> None:
    claims = new_claims(
        issuer="trace-dispatcher",
        org_id=CLAIMS.org_id,
        task_id=CLAIMS.task_id,
        attempt=attempt,
        datasets=datasets,
        s3=s3,
        timeout_seconds=timeout,
        now=now,
    )
    token = KEY.sign(encode(claims))

    async def published() -> dict[str, Any]:
        return {"keys": [KEY.jwk]}

    async def verified() -> Claims:
        return await Verifier(published, TokenSettings(), clock=Clock(now), monotonic=Clock(now)).verify(token)

    assert asyncio.run(verified()) == claims


def paths(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [here, *(path for key, item in inner for path in paths(item, (*here, key)))]


def put(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = put(value[path[0]], path[1:], new)
    return copy


@SETTINGS
@given(any_claims(), st.data())
def test_one_value_replaced_is_refused_or_is_what_comes_back(claims: Claims, data: st.DataObject) -> None:
    payload = json.loads(encode(claims))
    changed = put(payload, data.draw(st.sampled_from(paths(payload))), data.draw(JSON))
    try:
        again = decode(json.dumps(changed).encode())
    except TokenRefused:
        return
    assert json.loads(encode(again)) == changed


@SETTINGS
@given(any_claims(), st.text(min_size=1, max_size=12), JSON)
def test_a_claim_added_is_refused(claims: Claims, name: str, value: Any) -> None:
    payload = json.loads(encode(claims))
    if name in payload:
        return
    try:
        decode(json.dumps(payload | {name: value}).encode())
    except TokenRefused as refused:
        assert refused.reason in {Reason.BAD_CLAIMS, Reason.MALFORMED}  # noqa: PT017 - either outcome ends the example
    else:
        raise AssertionError(name)


@SETTINGS
@given(st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_other_payload_is_refused_without_another_error(payload: bytes) -> None:
    try:
        decode(payload)
    except TokenRefused:
        return
    raise AssertionError(payload)


@SETTINGS
@given(st.text(max_size=200) | st.text("abcAZ09-_.=", max_size=200))
def test_any_other_text_is_refused_without_another_error(token: str) -> None:
    async def unasked() -> dict[str, Any]:
        raise AssertionError("no key is asked for")

    async def refused() -> None:
        try:
            await Verifier(unasked, TokenSettings()).verify(token)
        except TokenRefused:
            return
        raise AssertionError(token)

    asyncio.run(refused())


@SETTINGS
@given(st.none() | st.floats(-1e6, 1e300), st.integers(600, 2 * LONGEST_LIFE_SECONDS))
def test_the_lifetime_is_the_timeout_and_five_minutes_within_a_day(timeout: float | None, longest: int) -> None:
    life = life_of(timeout, longest)
    assert 300 <= life <= min(longest, 24 * 3600)
    if timeout is not None and 0 <= timeout <= min(longest, 24 * 3600) - 300:
        assert life == int(timeout) + 300


@SETTINGS
@given(st.integers(0, 2**40), st.integers(1, LONGEST_LIFE_SECONDS), st.floats(0, 1))
def test_a_token_is_renewed_past_half_its_lifetime(iat: int, life: int, share: float) -> None:
    claims = replace(CLAIMS, iat=iat, exp=iat + life)
    assert not renewal_due(claims, iat + life / 2)
    assert renewal_due(claims, iat + life / 2 + 0.01)
    assert renewal_due(claims, iat + share * life) == (iat + share * life > iat + life / 2)
