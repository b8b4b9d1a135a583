"""Keys are exchanged through the state database: every replica agrees, and no token is ever ahead of its key.

Time is moved by the test: what passes is taken off every moment that the table remembers and added to the verifiers'
clocks.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.support import ROOT
from tests.support.child_process import program
from tests.support.identity.tokens import CLAIMS, Clock, Key, pem, put
from tracelake.adapters.signer_pem import PemSigner
from tracelake.capability.claims import Claims, encode, mint
from tracelake.capability.refusal import Reason, TokenRefused
from tracelake.capability.verifier import Verifier
from tracelake.errors import NotFound, SetupError, Unavailable
from tracelake.ports import KeyPlan
from tracelake.settings import TokenSettings, load_settings
from tracelake.store.db import open_pool
from tracelake.store.queries import queries
from tracelake.store.signing_keys import maintain_keys, published, revoke

pytestmark = pytest.mark.anyio

OVERLAP, FLOOR = 10.0, 5.0
TOKENS = TokenSettings(overlap_seconds=OVERLAP, refresh_floor_seconds=FLOOR, rotation_days=30)
DAY = 86400.0


@dataclass
class World:
    """One state database, one key folder, one time."""

    pool: asyncpg.Pool
    folder: Path
    tokens: TokenSettings = TOKENS
    clock: Clock = field(default_factory=Clock)

    def signer(self) -> PemSigner:
        return PemSigner(self.folder)

    def verifier(self) -> Verifier:
        return Verifier(lambda: published(self.pool), self.tokens, clock=self.clock, monotonic=self.clock)

    async def maintain(self, signer: PemSigner) -> KeyPlan:
        return await maintain_keys(self.pool, signer, self.tokens)

    async def passes(self, seconds: float) -> None:
        self.clock.now += seconds
        moments = ("created_at", "active_from", "active_until", "verify_until")
        changes = ", ".join(f"{moment} = {moment} - make_interval(secs => $1)" for moment in moments)
        await self.pool.execute(f"UPDATE signing_keys SET {changes}", seconds)  # noqa: S608 - our own names

    async def states(self) -> dict[str, str]:
        return {row["kid"]: row["status"] for row in await self.pool.fetch("SELECT kid, status FROM signing_keys")}

    async def kids(self) -> list[str]:
        return [key["kid"] for key in (await published(self.pool))["keys"]]

    def claims(self) -> Claims:
        now = int(self.clock.now)
        return replace(CLAIMS, iat=now, exp=now + 3600)


@pytest.fixture
async def world(state_db: str, tmp_path: Path) -> AsyncIterator[World]:
    async with open_pool(state_db, name="test", max_size=4) as pool:
        yield World(pool, tmp_path / "keys")


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


async def test_a_key_taken_away_before_it_signed_is_no_longer_published(world: World) -> None:
    signer, leaked = world.signer(), Key()
    old = (await world.maintain(signer)).signing
    path = put(world.folder, "leaked.pem", pem(leaked))
    await world.maintain(signer)
    await asyncio.to_thread(path.unlink)
    await world.maintain(signer)
    assert leaked.kid in await world.kids(), "it may have come after this replica looked"
    await world.passes(OVERLAP)
    assert (await world.maintain(signer)).signing == old
    assert await world.kids() == [old]


async def test_a_key_that_is_not_there_does_not_sign_even_when_no_other_does(world: World) -> None:
    signer, leaked = world.signer(), Key()
    old = (await world.maintain(signer)).signing
    assert old is not None
    path = put(world.folder, "leaked.pem", pem(leaked))
    await world.maintain(signer)
    await asyncio.to_thread(path.unlink)
    await revoke(world.pool, old)
    assert (await world.maintain(signer)).signing not in {old, leaked.kid}
    claims = world.claims()
    assert await world.verifier().verify(await mint(signer, claims)) == claims


async def test_replicas_move_keys_on_one_after_the_other(world: World) -> None:
    async with world.pool.acquire() as connection:
        async with connection.transaction():
            await connection.execute(queries("signing_keys")["lock_keys"])
            beat = asyncio.create_task(world.maintain(world.signer()))
            waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = $1"
            database = await connection.fetchval("SELECT oid FROM pg_database WHERE datname = current_database()")
            while not await connection.fetchval(waiting, database):
                assert not beat.done()
            assert await world.states() == {}
        assert (await beat).signing is not None


async def test_a_signing_key_that_was_lost_is_replaced_after_the_overlap(world: World) -> None:
    signer = world.signer()
    lost = (await world.maintain(signer)).signing
    await asyncio.to_thread((world.folder / f"task-{lost}.pem").unlink)
    await world.maintain(signer)
    with pytest.raises(Unavailable):
        await signer.sign(b"{}")
    await world.passes(OVERLAP)
    await world.maintain(signer)
    claims = world.claims()
    assert await world.verifier().verify(await mint(signer, claims)) == claims


async def test_a_revoked_key_ends_at_once_and_another_signs_at_once(world: World) -> None:
    signer, verifier = world.signer(), world.verifier()
    kid = (await world.maintain(signer)).signing
    assert kid is not None
    token = await mint(signer, world.claims())
    await verifier.verify(token)
    await revoke(world.pool, kid)
    assert (await world.maintain(signer)).signing != kid
    assert kid not in await world.kids()
    assert kid not in {key.kid for key in await signer.keys()}
    await world.passes(FLOOR)
    claims = world.claims()
    assert await verifier.verify(await mint(signer, claims)) == claims
    with pytest.raises(TokenRefused) as refused:
        await verifier.verify(token)
    assert refused.value.reason is Reason.UNKNOWN_KEY
    with pytest.raises(NotFound):
        await revoke(world.pool, kid)


@pytest.mark.parametrize("status", ["Pending", "Retiring"])
async def test_a_key_can_be_revoked_in_any_state(status: str, world: World) -> None:
    signer = world.signer()
    first = (await world.maintain(signer)).signing
    second = (await signer.rotate()).kid
    await world.maintain(signer)
    if status == "Retiring":
        await world.passes(OVERLAP)
        await world.maintain(signer)
    states = await world.states()
    kid = first if status == "Retiring" else second
    assert kid is not None
    assert states[kid] == status
    await revoke(world.pool, kid)
    await world.maintain(signer)
    assert (await world.states())[kid] == "Retired"
    assert len(await signer.keys()) == 1


async def test_a_retired_key_that_comes_back_from_a_backup_is_destroyed_again(world: World) -> None:
    signer, old = world.signer(), Key()
    put(world.folder, "old.pem", pem(old))
    assert (await world.maintain(signer)).signing == old.kid
    await revoke(world.pool, old.kid)
    await world.maintain(signer)
    put(world.folder, "restored.pem", pem(old))
    plan = await world.maintain(signer)
    assert plan.signing != old.kid
    assert old.kid not in {key.kid for key in await signer.keys()}


async def test_a_key_of_the_user_issuer_is_never_used_for_tasks(world: World) -> None:
    key = Key()
    put(world.folder, "issuer.pem", pem(key))
    await world.pool.execute(
        "INSERT INTO signing_keys (kid, purpose, public_jwk) VALUES ($1, 'user', $2::text::jsonb)",
        key.kid,
        '{"kty":"EC","crv":"P-256","x":"x","y":"y"}',
    )
    signer = world.signer()
    with pytest.raises(SetupError, match=key.kid):
        await world.maintain(signer)
    with pytest.raises(Unavailable):
        await signer.sign(b"{}")
    assert await world.kids() == []


async def test_garbage_in_the_folder_stops_rotation_and_nothing_else(world: World) -> None:
    signer = world.signer()
    await world.maintain(signer)
    put(world.folder, "notes.txt", b"!")
    with pytest.raises(SetupError, match=r"notes\.txt"):
        await world.maintain(signer)
    claims = world.claims()
    assert await world.verifier().verify(await mint(signer, claims)) == claims


async def test_a_signer_that_cannot_rotate_still_follows(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    signer = world.signer()
    await world.maintain(signer)
    await world.passes(31 * DAY)

    async def read_only(**_: Any) -> None:
        raise SetupError("the key folder cannot be used: Read-only file system")

    other = world.signer()
    monkeypatch.setattr(other, "rotate", read_only)
    with pytest.raises(SetupError, match="Read-only"):
        await world.maintain(other)
    claims = world.claims()
    assert await world.verifier().verify(await mint(other, claims)) == claims


async def test_a_clock_of_the_server_that_steps_back_breaks_nothing(world: World) -> None:
    signer = world.signer()
    await world.maintain(signer)
    await signer.rotate()
    await world.maintain(signer)
    await world.passes(OVERLAP)
    await world.pool.execute("UPDATE signing_keys SET active_from = now() + interval '1 hour' WHERE status = 'Active'")
    await world.maintain(signer)
    assert sorted((await world.states()).values()) == ["Active", "Retiring"]


async def test_every_statement_can_be_prepared(world: World) -> None:
    async with world.pool.acquire() as connection:
        for text in queries("signing_keys").values():
            await connection.prepare(text)


CHILD = """
import asyncio, sys, time
from dataclasses import replace
from pathlib import Path
from tests.support.identity.tokens import CLAIMS
from tracelake.adapters.signer_pem import PemSigner
from tracelake.capability.claims import encode
from tracelake.settings import TokenSettings, load_settings
from tracelake.store.db import open_pool
from tracelake.store.signing_keys import maintain_keys

async def main(folder, dsn):
    async with open_pool(dsn, name="child", max_size=1) as pool:
        signer = PemSigner(Path(folder))
        await maintain_keys(pool, signer, TokenSettings())
        now = int(time.time())
        print(await signer.sign(encode(replace(CLAIMS, iat=now, exp=now + 600))))

asyncio.run(main(*sys.argv[1:]))
"""


async def test_two_processes_that_start_together_accept_each_others_tokens(world: World, state_db: str) -> None:
    arguments = [sys.executable, "-c", CHILD, str(world.folder), state_db]
    children = [
        await asyncio.create_subprocess_exec(*arguments, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    answers = await asyncio.gather(*(child.communicate() for child in children))
    tokens = [out.decode().strip() for out, _ in answers]
    assert all(tokens), answers
    verifier = Verifier(lambda: published(world.pool), TOKENS)
    kids = {token.partition(".")[0] for token in tokens}
    assert len(kids) == 1
    for token in tokens:
        assert (await verifier.verify(token)).exp > time.time()
    assert list((await world.states()).values()) == ["Active"]


async def test_a_beat_killed_at_any_step_is_finished_by_the_next(world: World, state_db: str) -> None:
    await world.maintain(world.signer())
    killed = await asyncio.create_subprocess_exec(
        *program("killed_key_changes", "beat", str(world.folder), state_db),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, err = await killed.communicate()
    assert killed.returncode == 0, err.decode()
    steps = {tuple(line.split()) for line in out.decode().splitlines()}
    assert {("first", "os.replace"), ("due", "os.replace"), ("waiting", "sql"), ("ended", "os.unlink")} <= steps
    assert {situation for situation, _ in steps} == {"first", "due", "waiting", "ended"}


def test_an_overlap_that_a_verifiers_pace_could_outlast_is_refused() -> None:
    with pytest.raises(ValueError, match="at least twice"):
        TokenSettings(overlap_seconds=9.9, refresh_floor_seconds=5)


def test_the_key_folder_lies_in_the_home_unless_it_is_set(tmp_path: Path) -> None:
    assert load_settings({}, home=tmp_path).task_key_folder == tmp_path / "keys" / "task"
    assert load_settings({"TRACE_TOKENS__KEY_FOLDER": "/k"}, home=tmp_path).task_key_folder == Path("/k")
