"""Creates temporary credentials for the object store: for the folders of the task's token, and never for longer.

The policy is derived from the token alone (`domain/access/session_policy.py`), not from the request. STS is called
between two checks of the lease, without a connection: credentials that arrive after the attempt has ended are
discarded. The second check stores the entry of the audit, so a task gets no key that the audit does not have.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import asyncpg
import structlog

from tracelake.capability.claims import Claims
from tracelake.dispatcher.audit.credentials import CredentialsEntry
from tracelake.domain.access.grants import StorageGrant
from tracelake.domain.access.session_policy import session_policy
from tracelake.errors import Conflict, Forbidden
from tracelake.ports import CredentialMinter, SessionKeys
from tracelake.runtime.coalesce import Coalesced
from tracelake.settings import CredentialSettings, ObjectSettings
from tracelake.store.clock import DatabaseClock
from tracelake.store.tasks import require_running
from tracelake.wire.internal.identity import CredentialsAnswer, CredentialsRequest, MountedStorage, SessionCredentials

log = structlog.get_logger()

SHORTEST_SECONDS: Final = 900
"""The shortest session that STS allows."""


@dataclass(frozen=True)
class CredentialMint:
    database: asyncpg.Pool
    minter: CredentialMinter | None
    """None: this system creates no credentials."""
    settings: CredentialSettings
    places: ObjectSettings
    clock: DatabaseClock
    record: Coalesced[CredentialsEntry, None]
    """Refuses an attempt that has ended."""

    async def mint(self, request: CredentialsRequest, claims: Claims, origin: str) -> CredentialsAnswer:
        """`origin`: the address from which the task calls."""
        storage = claims.grants.storage
        if self.minter is None:
            raise Forbidden(
                "this system creates no credentials", where="/v1/task/credentials", hint="set credentials.role_arn"
            )
        policy = session_policy(storage, partition=_partition(self.settings.role_arn))
        await require_running(self.database, request)
        keys = await self.minter.mint(policy, session=session_name(claims), seconds=self._seconds(claims))
        if keys is None:
            await require_running(self.database, request)
        else:
            await self.record(CredentialsEntry(request, origin, _detail(claims, storage, keys)))
        log.info("credentials", folders=len(storage.read), until=keys and keys.expires_at.isoformat())
        return self._answer(claims, storage, keys)

    def _seconds(self, claims: Claims) -> int:
        left = int(claims.exp - self.clock())
        if left < SHORTEST_SECONDS:
            raise Conflict(
                f"the token ends in {max(left, 0)} s, and no credentials are created for less than"
                f" {SHORTEST_SECONDS} s",
                where="/v1/task/credentials",
                hint="use the fresh token of a heartbeat; a job that uses credentials needs timeout_seconds of 1500",
            )
        return min(left, self.settings.max_seconds)

    def _answer(self, claims: Claims, storage: StorageGrant, keys: SessionKeys | None) -> CredentialsAnswer:
        read, write = sorted(map(str, storage.read)), sorted(map(str, storage.write))
        if keys is None:
            return MountedStorage(read=read, write=write)
        return SessionCredentials(
            access_key_id=keys.access_key_id,
            secret_access_key=keys.secret_access_key,
            session_token=keys.session_token,
            expires_at=min(keys.expires_at, datetime.fromtimestamp(claims.exp, UTC)),
            region=self.places.region,
            endpoint=self.places.endpoint,
            read=read,
            write=write,
        )


def _detail(claims: Claims, storage: StorageGrant, keys: SessionKeys) -> dict[str, Any]:
    """The key's id, not its secret: the log of the store names it too."""
    return {
        "access_key_id": keys.access_key_id,
        "session": session_name(claims),
        "until": keys.expires_at.isoformat(),
        "read": sorted(map(str, storage.read)),
        "write": sorted(map(str, storage.write)),
    }


def session_name(claims: Claims) -> str:
    """Shown in the store's audit: half of the organisation's id, the task's id, the attempt. At most 64 characters."""
    return f"{claims.org_id.hex[:16]}.{claims.task_id.hex}.{claims.attempt}"


def _partition(role_arn: str | None) -> str:
    return role_arn.split(":")[1] if role_arn else "aws"
