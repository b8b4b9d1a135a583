"""Decides which key signs capability tokens and which keys verify them, the same for all replicas.

    Pending ---> Active ---> Retiring ---> Retired
    published    signs       verifies      deleted; its private key is destroyed

A key is published from Pending to Retiring. It is Pending for the overlap, so that every verifier can have fetched it
before its first token, and Retiring until its last token has expired. Signers hold the private keys and follow this
plan. All times are those of Postgres.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

import asyncpg

from tracelake.capability.claims import LONGEST_LIFE_SECONDS
from tracelake.errors import NotFound, SetupError
from tracelake.ports import KeyPlan, PublicKey, Signer
from tracelake.runtime.crash_points import crash_point
from tracelake.settings import TokenSettings
from tracelake.store.queries import Row, fetch_column, fetch_row, queries

LAG: Final = timedelta(hours=1)
"""How far behind a replica may be: it may sign with the former key until its next `maintain_keys`."""
LAST_TOKEN: Final = timedelta(seconds=LONGEST_LIFE_SECONDS) + LAG
"""Not the setting, which may have been larger when the last token was issued."""


class PlannedKeys(Row, frozen=True):
    signing: str | None
    retired: list[str]
    foreign_keys: list[str]
    rotation_due: bool


async def published(pool: asyncpg.Pool) -> dict[str, Any]:
    """The JWKS document, the same from every replica, with the epoch of the tokens that are valid."""
    keys = await fetch_column(pool, queries("signing_keys")["list_published"])
    return {"keys": keys, "epoch": await current_epoch(pool)}


async def current_epoch(pool: asyncpg.Pool) -> int:
    """How often the system was restored from a backup."""
    return int(await pool.fetchval(queries("signing_keys")["current_epoch"]))


async def maintain_keys(pool: asyncpg.Pool, signer: Signer, tokens: TokenSettings) -> KeyPlan:
    """Publishes new keys, switches to the next one when it is due, retires old ones, and creates one if none is left.

    Every replica calls it first, and then periodically; after it, the signer signs. It may run concurrently, and be
    repeated or interrupted at any point.
    """
    keys = await signer.keys()
    plan = await _update_signer(pool, signer, keys, tokens)
    if not plan.rotation_due:
        return plan
    await signer.rotate(known=[key.kid for key in keys])
    crash_point("rotate_keys.rotated")
    return await _update_signer(pool, signer, await signer.keys(), tokens)


async def revoke(pool: asyncpg.Pool, kid: str) -> None:
    """Revokes a leaked key: its tokens are invalid as soon as verifiers fetch the keys again."""
    if await pool.execute(queries("signing_keys")["revoke_key"], kid) == "UPDATE 0":
        raise NotFound(f"no key {kid} is in use", where="kid")


async def update_keys(
    pool: asyncpg.Pool, keys: Sequence[PublicKey], *, overlap: timedelta, rotate_after: timedelta
) -> KeyPlan:
    """Records the keys that a signer holds, moves keys to their next state, and returns the plan for the signer."""
    sql = queries("signing_keys")
    held = [key.kid for key in keys]
    await pool.execute(sql["insert_keys"], held, [json.dumps(dict(key.jwk)) for key in keys])
    crash_point("rotate_keys.recorded")
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute(sql["lock_keys"])
        await connection.execute(sql["retire_expired"])
        await connection.execute(sql["delete_unused"], held, overlap)
        if following := await connection.fetchval(sql["find_next"], held, overlap):
            await connection.execute(sql["end_signing"], LAST_TOKEN)
            await connection.execute(sql["begin_signing"], following)
        plan = await fetch_row(connection, sql["plan"], PlannedKeys, held, rotate_after)
    if plan.foreign_keys:
        raise SetupError(
            f"these keys sign other tokens already: {', '.join(plan.foreign_keys)}",
            where="tokens.key_folder",
            hint="a key has one purpose; remove them from the folder",
        )
    return KeyPlan(plan.signing, tuple(plan.retired), plan.rotation_due)


async def _update_signer(
    pool: asyncpg.Pool, signer: Signer, keys: Sequence[PublicKey], tokens: TokenSettings
) -> KeyPlan:
    plan = await update_keys(
        pool,
        keys,
        overlap=timedelta(seconds=tokens.overlap_seconds),
        rotate_after=timedelta(days=tokens.rotation_days),
    )
    crash_point("rotate_keys.settled")
    await signer.follow(plan)
    crash_point("rotate_keys.followed")
    return plan
