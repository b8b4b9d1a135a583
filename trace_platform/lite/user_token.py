"""Tokens of Lite's own issuer, for people and tools on this machine."""

from __future__ import annotations

import time
import uuid

import jwt
from cryptography.hazmat.primitives.asymmetric import ec

from trace_platform.settings import IdentitySettings

DAY = 24 * 3600


def mint_user_token(
    key: ec.EllipticCurvePrivateKey, identity: IdentitySettings, subject: str, seconds: int = 30 * DAY
) -> str:
    now = int(time.time())
    claims = {
        "iss": identity.user_issuer,
        "aud": identity.user_audience,
        "sub": subject,
        "iat": now,
        "exp": now + seconds,
        "jti": str(uuid.uuid4()),
    }
    return jwt.encode(claims, key, algorithm="ES256")
