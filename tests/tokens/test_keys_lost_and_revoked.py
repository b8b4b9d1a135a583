"""Keys that are lost, revoked, brought back or damaged, and replicas that die while they exchange them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from typing import Any

import pytest

from tests.support import ROOT
from tests.support.child_process import program
from tests.support.identity.key_rotation import DAY, FLOOR, OVERLAP, TOKENS, World
from tests.support.identity.tokens import Key, pem, put
from tracelake.capability.claims import mint
from tracelake.capability.refusal import Reason, TokenRefused
from tracelake.capability.verifier import Verifier
from tracelake.errors import NotFound, SetupError, Unavailable
from tracelake.store.queries import queries
from tracelake.store.signing_keys import published, revoke

pytestmark = pytest.mark.anyio


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
