"""The claims of a capability token, and how long it is valid.

The claims are the only source of what an attempt may touch: endpoints, SQL views and storage policy all follow from
them. So they are read strictly. The decoded claims, encoded again, must equal the payload: a claim that this code does
not know might be a limit that it would not enforce.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final
from uuid import UUID, uuid4

import msgspec

from tracelake.capability.jws import check_size
from tracelake.capability.refusal import Reason, TokenRefused
from tracelake.capability.strict_json import read_object
from tracelake.domain.access.grants import GrantedDataset, Grants, S3Prefixes, check, grants_of, refuse_duplicates
from tracelake.domain.ids import Attempt, OrgId, TaskId
from tracelake.errors import InvalidRequest
from tracelake.ports import Signer

AUDIENCE: Final = "trace.task"

LONGEST_LIFE_SECONDS: Final = 24 * 3600
"""No token lives longer, whatever the settings: keys stay published for as long as this."""
BEYOND_TIMEOUT_SECONDS: Final = 5 * 60
"""How long a token outlives its task's timeout, so that a late reply can still be made."""

_TEXT: Final = re.compile(r"[\x21-\x7e]{1,2048}")
_INTEGER_LIMIT: Final = 2**63


@dataclass(frozen=True)
class Claims:
    """A token's whole content. Times are whole seconds since 1970."""

    iss: str
    iat: int
    exp: int
    jti: UUID
    org_id: OrgId
    task_id: TaskId
    attempt: Attempt
    datasets: tuple[GrantedDataset, ...]
    s3: S3Prefixes
    epoch: int = 0
    """How often the system had been restored from a backup. A token of another epoch is refused."""

    @property
    def aud(self) -> str:
        return AUDIENCE

    @property
    def sub(self) -> str:
        return f"task:{self.task_id}"

    @cached_property
    def grants(self) -> Grants:
        """What they permit: the only part that an API checks."""
        return grants_of(self)

    def __post_init__(self) -> None:
        check(_TEXT.fullmatch(self.iss), "/iss", "is not printable ASCII")
        check(0 <= self.iat < self.exp < _INTEGER_LIMIT, "/exp", "does not follow iat")
        check(1 <= self.attempt < _INTEGER_LIMIT, "/attempt", "counts from 1")
        check(0 <= self.epoch < _INTEGER_LIMIT, "/epoch", "is negative")
        refuse_duplicates(self.datasets)


def new_claims(
    *,
    issuer: str,
    org_id: OrgId,
    task_id: TaskId,
    attempt: Attempt,
    datasets: tuple[GrantedDataset, ...],
    s3: S3Prefixes,
    timeout_seconds: float | None,
    now: float,
    max_life_seconds: int = LONGEST_LIFE_SECONDS,
    epoch: int = 0,
) -> Claims:
    """The claims of a token issued now, under an id of its own."""
    issued = int(now)
    return Claims(
        iss=issuer,
        iat=issued,
        exp=issued + life_of(timeout_seconds, max_life_seconds),
        jti=uuid4(),
        org_id=org_id,
        task_id=task_id,
        attempt=attempt,
        datasets=datasets,
        s3=s3,
        epoch=epoch,
    )


def life_of(timeout_seconds: float | None, max_life_seconds: int = LONGEST_LIFE_SECONDS) -> int:
    """How many seconds a token lives. A task without a timeout (a source) gets the longest life, and renews."""
    longest = min(max_life_seconds, LONGEST_LIFE_SECONDS)
    if timeout_seconds is None:
        return longest
    return min(int(min(max(timeout_seconds, 0), LONGEST_LIFE_SECONDS)) + BEYOND_TIMEOUT_SECONDS, longest)


def renewal_due(claims: Claims, now: float) -> bool:
    """Past half its life, a heartbeat answers with a fresh token."""
    return now > claims.iat + (claims.exp - claims.iat) / 2


async def mint(signer: Signer, claims: Claims) -> str:
    """The token with these claims."""
    return await signer.sign(encode(claims))


def encode(claims: Claims) -> bytes:
    """A JWT's payload. Claims that would make a token too large to be accepted anywhere are refused here."""
    payload = _written(claims)
    check_size(payload)
    return payload


def decode(payload: bytes) -> Claims:
    """The claims of a payload whose signature holds, or TokenRefused."""
    raw = read_object(payload)
    if raw.get("aud") != AUDIENCE:
        raise TokenRefused(Reason.WRONG_AUDIENCE)
    try:
        claims = msgspec.convert(raw, Claims)
    except msgspec.ValidationError as wrong:
        raise TokenRefused(Reason.BAD_CLAIMS, _pointer(str(wrong))) from None
    except InvalidRequest as wrong:
        raise TokenRefused(Reason.BAD_CLAIMS, wrong.where) from None
    again = msgspec.json.decode(_written(claims))
    if again != raw:
        raise TokenRefused(Reason.BAD_CLAIMS, _difference(again, raw))
    return claims


def _written(claims: Claims) -> bytes:
    return msgspec.json.encode(
        {
            "iss": claims.iss,
            "aud": claims.aud,
            "sub": claims.sub,
            "iat": claims.iat,
            "exp": claims.exp,
            "jti": claims.jti,
            "org_id": claims.org_id,
            "task_id": claims.task_id,
            "attempt": claims.attempt,
            "datasets": claims.datasets,
            "s3": claims.s3,
            # Left out before the first restore: tokens of earlier versions have none.
            **({"epoch": claims.epoch} if claims.epoch else {}),
        }
    )


def _pointer(error: str) -> str | None:
    """The `$.datasets[...].commit` of an msgspec error, as a JSON pointer; only that, since it may contain values."""
    path = error.rpartition(" - at `$")[2].rstrip("`")
    if path == error:
        missing = re.search(r"required field `(\w+)`", error)
        return f"/{missing[1]}" if missing else None
    return re.sub(r"\[[^\]]*\]", "", path).replace(".", "/")


def _difference(again: dict[str, Any], raw: dict[str, Any]) -> str | None:
    """Which claim differs; None if it is an unknown one, whose name is not repeated."""
    return next((f"/{name}" for name, value in again.items() if raw.get(name) != value), None)
