"""Which key signs capability tokens, and by which they may be verified: one answer for all replicas.

    Pending ---> Active ---> Retiring ---> Retired
    published    signs       verifies      gone; its private half is destroyed

A key is published from Pending to Retiring. It waits in Pending for the overlap, so that every verifier can have seen
it before its first token; it stays in Retiring until its last token has expired. Signers hold the private halves and
follow; only Postgres's clock counts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

import asyncpg

from tracelake.capability import LONGEST_LIFE_SECONDS
from tracelake.errors import NotFound, SetupError
from tracelake.ports import KeyPlan, PublicKey, Signer
from tracelake.runtime.crash_points import crash_point
from tracelake.settings import TokenSettings
from tracelake.store.queries import queries

LAG: Final = timedelta(hours=1)
"""How far a replica may be behind: it may sign with the former key until its next `keep_keys`."""
LAST_TOKEN: Final = timedelta(seconds=LONGEST_LIFE_SECONDS) + LAG
"""Not the setting: it may have been larger when the last token was issued."""


async def published(pool: asyncpg.Pool) -> dict[str, Any]:
    """The JWKS document: the same from every replica."""
    rows = await pool.fetch(queries("signing_keys")["published"])
    return {"keys": [json.loads(row["jwk"]) for row in rows]}


async def keep_keys(pool: asyncpg.Pool, signer: Signer, tokens: TokenSettings) -> KeyPlan:
    """One beat of every replica, and the first thing it does: after it, the signer signs.

    New keys are published, the next one signs when its time has come, old ones go; if the signing key is too old, or
    was taken away, a new one is made. It can be repeated, run anywhere at once, and be cut off at any point.
    """
    keys = await signer.keys()
    plan = await _settle_and_follow(pool, signer, keys, tokens)
    if not plan.rotation_due:
        return plan
    await signer.rotate(known=[key.kid for key in keys])
    crash_point("rotate_keys.rotated")
    return await _settle_and_follow(pool, signer, await signer.keys(), tokens)


async def revoke(pool: asyncpg.Pool, kid: str) -> None:
    """A key that got out: no token of it holds any more, as soon as verifiers fetch the set again."""
    if await pool.execute(queries("signing_keys")["revoke"], kid) == "UPDATE 0":
        raise NotFound(f"no key {kid} is in use", where="kid")


async def settle(
    pool: asyncpg.Pool, keys: Sequence[PublicKey], *, overlap: timedelta, rotate_after: timedelta
) -> KeyPlan:
    """Record the keys that a signer holds, move every key on whose time has come, and say what follows."""
    sql = queries("signing_keys")
    held = [key.kid for key in keys]
    await pool.execute(sql["record"], held, [json.dumps(dict(key.jwk)) for key in keys])
    crash_point("rotate_keys.recorded")
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute(sql["lock"])
        await connection.execute(sql["retire"])
        await connection.execute(sql["forget"], held, overlap)
        if following := await connection.fetchval(sql["next_to_sign"], held, overlap):
            await connection.execute(sql["end_signing"], LAST_TOKEN)
            await connection.execute(sql["begin_signing"], following)
        row = await connection.fetchrow(sql["plan"], held, rotate_after)
    assert row is not None  # noqa: S101 - a SELECT without FROM always has its row
    if row["foreign_keys"]:
        raise SetupError(
            f"these keys sign other tokens already: {', '.join(row['foreign_keys'])}",
            where="tokens.key_folder",
            hint="a key has one purpose; take them out of the folder",
        )
    return KeyPlan(row["signing"], tuple(row["retired"]), row["rotation_due"])


async def _settle_and_follow(
    pool: asyncpg.Pool, signer: Signer, keys: Sequence[PublicKey], tokens: TokenSettings
) -> KeyPlan:
    plan = await settle(
        pool,
        keys,
        overlap=timedelta(seconds=tokens.overlap_seconds),
        rotate_after=timedelta(days=tokens.rotation_days),
    )
    crash_point("rotate_keys.settled")
    await signer.follow(plan)
    crash_point("rotate_keys.followed")
    return plan
