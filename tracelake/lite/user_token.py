"""Tokens of Lite's own issuer, for people and tools on this machine."""

from __future__ import annotations

import json
import time
import uuid

from cryptography.hazmat.primitives.asymmetric import ec

from tracelake.capability.jws import encode_part, sign_token
from tracelake.settings import IdentitySettings

DAY = 24 * 3600
HEADER = encode_part(b'{"alg":"ES256","typ":"JWT"}')


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
    return sign_token(HEADER, json.dumps(claims).encode(), key)
