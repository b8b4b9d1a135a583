"""A state database, a key folder and a time that a test moves."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import asyncpg

from tests.support.identity.tokens import CLAIMS, Clock
from tracelake.adapters.signer_pem import PemSigner
from tracelake.capability.claims import Claims
from tracelake.capability.verifier import Verifier
from tracelake.ports import KeyPlan
from tracelake.settings import TokenSettings
from tracelake.store.signing_keys import maintain_keys, published

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
