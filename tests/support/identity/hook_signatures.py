"""Signs calls as the senders of webhooks do, written from their public descriptions and not from our own code."""

from __future__ import annotations

import base64
import hmac

from tracelake.domain.sources.signatures import HookScheme


def sign(scheme: HookScheme, body: bytes, secret: str, at: float, id_: str = "msg_1") -> dict[str, str]:
    moment = str(int(at))
    match scheme:
        case HookScheme.STANDARD:
            content = f"{id_}.{moment}.".encode() + body
            signature = base64.b64encode(hmac.digest(standard_key(secret), content, "sha256")).decode()
            return {"webhook-id": id_, "webhook-timestamp": moment, "webhook-signature": f"v1,{signature}"}
        case HookScheme.STRIPE:
            digest = hmac.digest(secret.encode(), f"{moment}.".encode() + body, "sha256").hex()
            return {"stripe-signature": f"t={moment},v1={digest}"}
        case HookScheme.GITHUB:
            return {"x-hub-signature-256": f"sha256={hmac.digest(secret.encode(), body, 'sha256').hex()}"}
        case HookScheme.HMAC:
            return {"x-signature-256": f"sha256={hmac.digest(secret.encode(), body, 'sha256').hex()}"}


def standard_key(secret: str) -> bytes:
    """Base64 after `whsec_`; any other text is the key itself."""
    return base64.b64decode(secret.removeprefix("whsec_")) if secret.startswith("whsec_") else secret.encode()
