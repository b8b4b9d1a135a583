"""The object store for the current task: the disk, or S3 with keys minted for the task's token."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import Any, Final

from tracelake.ports import ObjectStore
from tracelake.settings import Settings
from tracelake.wire.client import TaskClient
from tracelake.wire.internal.identity import CredentialsRequest, SessionCredentials
from tracelake.wire.task.lifecycle import Invocation

MOST_REMEMBERED: Final = 256
EARLY_SECONDS: Final = 30.0


class Stores:
    """`made_for` opens the store with a session's keys."""

    def __init__(
        self,
        settings: Settings,
        objects: ObjectStore,
        tasks: TaskClient,
        made_for: Callable[[SessionCredentials], ObjectStore],
    ) -> None:
        self._objects = objects if settings.objects.backend == "disk" else None
        self._tasks = tasks
        self._made_for = made_for
        self._minted: dict[bytes, tuple[float, ObjectStore]] = {}

    async def store_for(self, token: str, invocation: Invocation) -> ObjectStore:
        """The proxy has checked the token's grants; on S3 the policy of the keys checks them again."""
        if self._objects is not None:
            return self._objects
        digest = hashlib.sha256(token.encode()).digest()
        until, store = self._minted.get(digest, (0.0, None))
        if store is None or time.time() >= until:
            until, store = await self._mint(token, invocation)
            while len(self._minted) >= MOST_REMEMBERED:
                del self._minted[next(iter(self._minted))]
            self._minted[digest] = (until, store)
        return store

    async def _mint(self, token: str, invocation: Invocation) -> tuple[float, ObjectStore]:
        fence: dict[str, Any] = {
            "task_id": invocation.task_id,
            "attempt": invocation.attempt,
            "lease_token": invocation.lease_token,
        }
        minted = await self._tasks.credentials(token, CredentialsRequest(**fence))
        if not isinstance(minted, SessionCredentials):
            raise TypeError("an S3 store answered with mounts")
        return minted.expires_at.timestamp() - EARLY_SECONDS, self._made_for(minted)
