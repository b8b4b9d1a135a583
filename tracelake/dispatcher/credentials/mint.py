"""A task's token becomes keys for the object store: the same folders, never for longer, and never for more.

The policy follows from the token alone (`domain/session_policy.py`); what the body asks for is not asked about. The
store's STS is called between two looks at the lease, with nothing held: keys that arrive after the attempt has ended
are thrown away.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import structlog

from tracelake.capability.claims import Claims
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.tasks.require_lease import require_lease
from tracelake.domain.grants import StorageGrant
from tracelake.domain.session_policy import session_policy
from tracelake.errors import Conflict, Forbidden
from tracelake.ports import SessionKeys
from tracelake.wire.task_messages import CredentialsAnswer, CredentialsRequest, MountedStorage, SessionCredentials

log = structlog.get_logger()

SHORTEST_SECONDS: Final = 900
"""No STS makes a shorter session."""


async def mint_credentials(control: Control, request: CredentialsRequest, claims: Claims) -> CredentialsAnswer:
    storage = claims.grants.storage
    if control.minter is None:
        raise Forbidden(
            "this system makes no credentials", where="/v1/task/credentials", hint="set credentials.role_arn"
        )
    policy = session_policy(storage, partition=_partition(control.credentials.role_arn))
    await require_lease(control, request)
    keys = await control.minter.mint(policy, session=session_name(claims), seconds=_seconds(control, claims))
    await require_lease(control, request)
    log.info("credentials", folders=len(storage.read), until=keys and keys.expires_at.isoformat())
    return _answer(control, claims, storage, keys)


def session_name(claims: Claims) -> str:
    """As the store's audit shows it: half of the organisation's id, all of the task's, the attempt. 64 at most."""
    return f"{claims.org_id.hex[:16]}.{claims.task_id.hex}.{claims.attempt}"


def _partition(role_arn: str | None) -> str:
    return role_arn.split(":")[1] if role_arn else "aws"


def _seconds(control: Control, claims: Claims) -> int:
    left = int(claims.exp - control.clock())
    if left < SHORTEST_SECONDS:
        raise Conflict(
            f"the token ends in {max(left, 0)} s, and no credentials are made for less than {SHORTEST_SECONDS} s",
            where="/v1/task/credentials",
            hint="take the fresh token of a heartbeat; a job that asks for credentials needs timeout_seconds of 1500",
        )
    return min(left, control.credentials.max_seconds)


def _answer(control: Control, claims: Claims, storage: StorageGrant, keys: SessionKeys | None) -> CredentialsAnswer:
    read, write = sorted(map(str, storage.read)), sorted(map(str, storage.write))
    if keys is None:
        return MountedStorage(read=read, write=write)
    return SessionCredentials(
        access_key_id=keys.access_key_id,
        secret_access_key=keys.secret_access_key,
        session_token=keys.session_token,
        expires_at=min(keys.expires_at, datetime.fromtimestamp(claims.exp, UTC)),
        region=control.places.region,
        endpoint=control.places.endpoint,
        read=read,
        write=write,
    )
