"""A verifier with keys and clock of the test's, and tokens for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.identity.tokens import CLAIMS, Clock, Key, as_json
from tracelake.capability.claims import encode
from tracelake.capability.refusal import Reason, TokenRefused
from tracelake.capability.verifier import Verifier
from tracelake.settings import TokenSettings

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


def saying(**changed: Any) -> str:
    """Well signed, with these claims changed."""
    return KEY.sign(as_json(PAYLOAD | changed))


def with_segment(index: int, change: Callable[[str], str]) -> str:
    segments = GOOD.split(".")
    segments[index] = change(segments[index])
    return ".".join(segments)


def replace_settings(**changed: Any) -> TokenSettings:
    return TokenSettings(**(SETTINGS.model_dump() | changed))
