"""A verifier fetches keys at a bounded rate, and keeps those it has while they cannot be fetched."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from typing import Any

import pytest

from tests.support.cases.hostile_tokens import HOSTILE
from tests.support.identity.tokens import CLAIMS, NOW, Clock, as_json, b64
from tests.support.identity.verifiers import (
    GOOD,
    HEADER,
    KEY,
    OTHER,
    SETTINGS,
    Publisher,
    make,
    reason_of,
    saying,
    with_segment,
)
from tracelake.capability import keyset
from tracelake.capability.refusal import Reason, TokenRefused
from tracelake.capability.verifier import Verifier
from tracelake.errors import ServiceUnavailable

pytestmark = pytest.mark.anyio


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
