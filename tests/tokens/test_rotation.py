"""Keys are exchanged through the state database: every replica agrees, and no token is ever ahead of its key.

Time is moved by the test: what passes is taken off every moment that the table remembers and added to the verifiers'
clocks.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.identity.key_rotation import DAY, FLOOR, OVERLAP, TOKENS, World
from tests.support.identity.tokens import CLAIMS, Key, pem, put
from tracelake.capability.claims import encode, mint
from tracelake.capability.refusal import Reason, TokenRefused
from tracelake.settings import TokenSettings, load_settings
from tracelake.store.signing_keys import published

pytestmark = pytest.mark.anyio


async def test_the_first_beat_makes_a_key_publishes_it_and_signs(world: World) -> None:
    signer = world.signer()
    plan = await world.maintain(signer)
    claims = world.claims()
    assert await world.verifier().verify(await mint(signer, claims)) == claims
    assert await world.kids() == [plan.signing]
    assert await world.maintain(signer) == plan
    assert len(await world.states()) == 1


async def test_the_published_document_holds_public_halves_only(world: World) -> None:
    await world.maintain(world.signer())
    document = await published(world.pool)
    (key,) = document.pop("keys")
    assert document == {"epoch": 0}
    assert set(key) == {"kty", "crv", "x", "y", "kid", "use", "alg"}


async def test_a_new_file_is_published_first_signs_after_the_overlap_and_the_old_key_goes_when_its_tokens_have(
    world: World,
) -> None:
    signer, provided = world.signer(), Key()
    old = (await world.maintain(signer)).signing
    assert old is not None
    put(world.folder, "new.pem", pem(provided))
    assert (await world.maintain(signer)).signing == old
    assert await world.kids() == [old, provided.kid]
    await world.passes(OVERLAP - 1)
    assert (await world.maintain(signer)).signing == old
    await world.passes(1)
    assert (await world.maintain(signer)).signing == provided.kid
    assert await world.states() == {old: "Retiring", provided.kid: "Active"}
    await world.passes(DAY)
    await world.maintain(signer)
    assert await world.kids() == [old, provided.kid]
    await world.passes(3600)
    assert await world.kids() == [provided.kid], "even before the next beat"
    await world.maintain(signer)
    assert await world.states() == {old: "Retired", provided.kid: "Active"}
    assert [key.kid for key in await signer.keys()] == [provided.kid], "the private half is destroyed"


async def test_a_key_that_signed_for_long_enough_is_replaced(world: World) -> None:
    signer = world.signer()
    old = (await world.maintain(signer)).signing
    await world.passes(30 * DAY - 60)
    assert not (await world.maintain(signer)).rotation_due
    await world.passes(60)
    assert (await world.maintain(signer)).signing == old
    await world.passes(OVERLAP)
    assert (await world.maintain(signer)).signing != old
    assert sorted((await world.states()).values()) == ["Active", "Retiring"]


async def test_several_waiting_keys_sign_in_the_order_they_came(world: World) -> None:
    signer = world.signer()
    order = [(await world.maintain(signer)).signing]
    for _ in range(2):
        order.append((await signer.rotate()).kid)
        await world.maintain(signer)
        await world.passes(1)
    await world.passes(OVERLAP)
    assert [(await world.maintain(signer)).signing for _ in range(3)] == [order[1], order[2], order[2]]


async def test_a_token_of_the_old_key_holds_until_it_expires(world: World) -> None:
    signer, stale, fresh = world.signer(), world.verifier(), world.verifier()
    await world.maintain(signer)
    claims = replace(world.claims(), exp=int(world.clock.now + DAY))
    token = await mint(signer, claims)
    assert await stale.verify(token) == claims
    await signer.rotate()
    await world.maintain(signer)
    await world.passes(OVERLAP)
    await world.maintain(signer)
    await world.passes(DAY - OVERLAP - 1)
    await world.maintain(signer)
    for verifier in (stale, fresh, world.verifier()):
        assert await verifier.verify(token) == claims
    await world.passes(1)
    for verifier in (stale, fresh, world.verifier()):
        with pytest.raises(TokenRefused) as refused:
            await verifier.verify(token)
        assert refused.value.reason is Reason.EXPIRED


async def refusals_during_rotations(world: World) -> int:
    """How many fresh tokens do not hold, for verifiers attacked at every phase of their pace, through two rotations."""
    signer, attacked = world.signer(), {phase: world.verifier() for phase in range(int(FLOOR))}
    await world.maintain(signer)
    refused, signed_by = 0, set()
    for tick in range(40):
        if tick == 3:
            put(world.folder, "provided.pem", pem(Key()))
        if tick == 21:
            await signer.rotate()
        for phase, verifier in attacked.items():
            if tick % int(FLOOR) == phase:
                with pytest.raises(TokenRefused):
                    await verifier.verify(unknown_token())
        plan = await world.maintain(signer)
        signed_by.add(plan.signing)
        claims = world.claims()
        token = await mint(signer, claims)
        for verifier in attacked.values():
            try:
                assert await verifier.verify(token) == claims
            except TokenRefused:
                refused += 1
        await world.passes(1)
    assert len(signed_by) == 3
    return refused


def unknown_token() -> str:
    return Key().sign(encode(CLAIMS))


async def test_there_is_no_moment_at_which_a_fresh_token_does_not_hold_for_a_stale_verifier(world: World) -> None:
    assert await refusals_during_rotations(world) == 0


async def test_without_the_overlap_there_would_be_such_a_moment(world: World) -> None:
    world.tokens = TOKENS.model_copy(update={"overlap_seconds": 0.0})
    assert await refusals_during_rotations(world) > 0


async def test_a_replica_that_lags_signs_with_the_old_key_and_its_tokens_hold(world: World) -> None:
    quick, slow = world.signer(), world.signer()
    await world.maintain(quick)
    await world.maintain(slow)
    await quick.rotate()
    await world.maintain(quick)
    await world.passes(OVERLAP)
    await world.maintain(quick)
    claims = world.claims()
    assert await world.verifier().verify(await mint(slow, claims)) == claims
    assert (await world.maintain(slow)) == (await world.maintain(quick))


async def test_replicas_that_start_at_once_agree_on_one_key(world: World) -> None:
    signers = [world.signer() for _ in range(6)]
    plans = await asyncio.gather(*(world.maintain(signer) for signer in signers))
    assert len({plan.signing for plan in plans}) == 1
    assert len(await world.states()) == 1
    claims = world.claims()
    for signer in signers:
        assert await world.verifier().verify(await mint(signer, claims)) == claims


async def test_replicas_that_find_a_rotation_due_at_once_make_one_key(world: World) -> None:
    signers = [world.signer() for _ in range(4)]
    await asyncio.gather(*(world.maintain(signer) for signer in signers))
    await world.passes(31 * DAY)
    await asyncio.gather(*(world.maintain(signer) for signer in signers))
    assert sorted((await world.states()).values()) == ["Active", "Pending"]
    await world.passes(OVERLAP)
    plans = await asyncio.gather(*(world.maintain(signer) for signer in signers))
    assert len({plan.signing for plan in plans}) == 1
    assert sorted((await world.states()).values()) == ["Active", "Retiring"]


def test_an_overlap_that_a_verifiers_pace_could_outlast_is_refused() -> None:
    with pytest.raises(ValueError, match="at least twice"):
        TokenSettings(overlap_seconds=9.9, refresh_floor_seconds=5)


def test_the_key_folder_lies_in_the_home_unless_it_is_set(tmp_path: Path) -> None:
    assert load_settings({}, home=tmp_path).task_key_folder == tmp_path / "keys" / "task"
    assert load_settings({"TRACE_TOKENS__KEY_FOLDER": "/k"}, home=tmp_path).task_key_folder == Path("/k")
