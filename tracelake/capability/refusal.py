"""Why a capability token is refused. The reason is stable: callers may branch on it. The token is never repeated."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

from tracelake.errors import Unauthenticated
from tracelake.wire.message import CAPABILITY_HEADER


class Reason(StrEnum):
    MISSING = "missing"
    TOO_LARGE = "too_large"
    MALFORMED = "malformed"
    REPEATED_KEY = "repeated_key"
    BAD_ALGORITHM = "bad_algorithm"
    BAD_HEADER = "bad_header"
    BAD_KEY_ID = "bad_key_id"
    UNKNOWN_KEY = "unknown_key"
    BAD_SIGNATURE = "bad_signature"
    WRONG_AUDIENCE = "wrong_audience"
    WRONG_ISSUER = "wrong_issuer"
    WRONG_EPOCH = "wrong_epoch"
    BAD_CLAIMS = "bad_claims"
    NOT_YET_VALID = "not_yet_valid"
    LIVES_TOO_LONG = "lives_too_long"
    EXPIRED = "expired"


SENTENCES: Final[dict[Reason, str]] = {
    Reason.MISSING: "there is none",
    Reason.TOO_LARGE: "it is larger than any that is issued",
    Reason.MALFORMED: "it is not a signed token",
    Reason.REPEATED_KEY: "a key is repeated in it",
    Reason.BAD_ALGORITHM: "it is not signed by ES256",
    Reason.BAD_HEADER: "its header has more than algorithm, type and key",
    Reason.BAD_KEY_ID: "it does not name its key",
    Reason.UNKNOWN_KEY: "its key is not among the published ones",
    Reason.BAD_SIGNATURE: "its signature is not by the key that it names",
    Reason.WRONG_AUDIENCE: "it is not meant for task APIs",
    Reason.WRONG_ISSUER: "it comes from another issuer",
    Reason.WRONG_EPOCH: "it was issued before the system was restored from a backup",
    Reason.BAD_CLAIMS: "its claims are not those of a capability",
    Reason.NOT_YET_VALID: "it was issued in the future",
    Reason.LIVES_TOO_LONG: "it lives longer than a token may",
    Reason.EXPIRED: "it has expired",
}


class TokenRefused(Unauthenticated):
    """An `Unauthenticated` with the rule that the token broke, and the JSON pointer of the claim at fault, if any."""

    def __init__(self, reason: Reason, claim: str | None = None) -> None:
        sentence = SENTENCES[reason] + (f" ({claim})" if claim else "")
        hint = "a heartbeat answers with a fresh one" if reason is Reason.EXPIRED else None
        super().__init__(
            f"the capability token does not hold: {sentence}", where=f"header {CAPABILITY_HEADER}", hint=hint
        )
        self.reason = reason

    def as_dict(self) -> dict[str, Any]:
        return super().as_dict() | {"reason": self.reason.value}
