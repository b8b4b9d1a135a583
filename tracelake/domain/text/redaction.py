"""Removes bearer tokens from text that people will read: user code prints what it was given."""

from __future__ import annotations

import re
from typing import Final

REDACTED: Final = "***"
_JWT: Final = re.compile(r"eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{16,}")
"""A compact JWS whose header and payload are JSON objects, as capabilities and users' tokens are. A token that was cut
before its signature is worth nothing."""


def redact_tokens(text: str) -> str:
    return _JWT.sub(REDACTED, text) if "eyJ" in text else text
