"""Keys of the object store for the tasks of this worker: each with the rights of its own token, on executors too.

What a task sends to executors holds an address and a secret, and no keys. Whoever opens the store asks here for keys,
and again before they expire: a fresh token of the lease opens the next session. An answer is encrypted by the task's
secret, so whoever listens on the network learns nothing that Spark has not sent as well.
"""

from __future__ import annotations

import asyncio
import base64
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, cast

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tracelake.errors import CredentialsUnavailable, LeaseLost, SettingsError, TraceError, Unavailable
from tracelake.operators.api.context import TaskApi
from tracelake.ports import ObjectStore, SessionKeys
from tracelake.runtime.retry import retry_with_backoff
from tracelake.wire.client import TaskClient
from tracelake.wire.internal.identity import CredentialsRequest, SessionCredentials
from tracelake.wire.task.lifecycle import Claimed
from tracelake.worker.task_api import WorkerTaskApi

SOON: Final = timedelta(minutes=6)
"""Keys that end sooner are replaced. The store's client asks five minutes before the end of those that it has."""
OUTAGE_SECONDS: Final = 240.0
"""How long the Dispatcher or STS may be away before a call of the store fails, and with it the attempt."""
ANSWER_SECONDS: Final = OUTAGE_SECONDS + 120.0
LINE_SECONDS: Final = 10.0
"""A caller that sends nothing for so long is disconnected."""
NONCE_BYTES: Final = 12
_LONGEST_LINE: Final = 256

OpenStore = Callable[[Callable[[], SessionKeys]], ObjectStore]
"""Makes a store of what returns its keys."""


class _Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    keys: SessionCredentials | None = None
    error: str = ""


_ANSWER: Final = msgspec.json.Decoder(_Answer)


@dataclass(frozen=True)
class KeySource:
    """Asks a worker for the keys of one of its tasks. Pickled, it can be sent to executors."""

    host: str
    port: int
    task: str
    secret: bytes = field(repr=False)

    def __call__(self) -> SessionKeys:
        answer = self._answer()
        if answer.keys is None:
            raise CredentialsUnavailable(f"no keys of the object store for this task: {answer.error}")
        keys = answer.keys
        return SessionKeys(keys.access_key_id, keys.secret_access_key, keys.session_token, keys.expires_at)

    def _answer(self) -> _Answer:
        try:
            with socket.create_connection((self.host, self.port), ANSWER_SECONDS) as connection:
                connection.sendall(f"{self.task}\n".encode())
                with connection.makefile("rb") as stream:
                    line = stream.readline()
        except OSError:
            raise CredentialsUnavailable(
                f"the worker at {self.host} does not answer, which has the keys of the object store",
                where="worker.limits_host",
                hint="if Spark runs on a cluster, set it to an address that its executors can reach",
            ) from None
        if not line:
            raise CredentialsUnavailable("no keys of the object store: the attempt has ended")
        return _ANSWER.decode(_decrypted(self.secret, self.task, line))


class TaskKeys:
    """Made in the event loop; `open` is called in the threads of tasks."""

    def __init__(self, tasks: TaskClient, host: str, open_store: OpenStore) -> None:
        self._tasks, self._host, self._open_store = tasks, host, open_store
        self._port = 0
        self._attempts: dict[str, _Attempt] = {}

    @contextmanager
    def open(self, claimed: Claimed, api: TaskApi) -> Iterator[ObjectStore]:
        """The store with the rights of this attempt, as long as it runs."""
        name, secret = f"{claimed.task.task_id}.{claimed.attempt}", AESGCM.generate_key(256)
        self._attempts[name] = _Attempt(claimed, cast("WorkerTaskApi", api), secret)
        try:
            yield self._open_store(KeySource(self._host, self._port, name, secret))
        finally:
            del self._attempts[name]

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        try:
            server = await asyncio.start_server(self._connected, self._host, 0, limit=_LONGEST_LINE)
        except OSError as wrong:
            reason = f"cannot listen on {self._host!r}: {wrong}"
            raise SettingsError(reason, where="worker.limits_host", hint="an address of this machine") from None
        self._port = server.sockets[0].getsockname()[1]
        async with server:
            yield

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError, ValueError):  # a time that is over is an OSError
                async with asyncio.timeout(LINE_SECONDS):
                    name = (await reader.readline()).decode("latin1").strip()
                attempt = self._attempts.get(name)
                if attempt is not None:
                    writer.write(_encrypted(attempt.secret, name, await attempt.answer(self._tasks)))
                    await writer.drain()
        finally:
            writer.close()


@dataclass
class _Attempt:
    claimed: Claimed
    api: WorkerTaskApi
    secret: bytes = field(repr=False)
    _keys: SessionCredentials | None = field(default=None, repr=False)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def answer(self, tasks: TaskClient) -> _Answer:
        try:
            async with self._lock:  # executors begin at once, and one session is enough for all
                if self._keys is None or self._keys.expires_at - datetime.now(UTC) < SOON:
                    self._keys = await self._new(tasks)
                return _Answer(self._keys)
        except TraceError as refusal:
            return _Answer(error=refusal.message)

    async def _new(self, tasks: TaskClient) -> SessionCredentials:
        claimed = self.claimed
        request = CredentialsRequest(
            task_id=claimed.task.task_id, attempt=claimed.attempt, lease_token=claimed.lease_token
        )
        end = time.monotonic() + OUTAGE_SECONDS
        try:
            answer = await retry_with_backoff(
                lambda: tasks.credentials(self.api.token, request),
                is_over=lambda: self.api.lost.is_set() or time.monotonic() > end,
            )
        except Unavailable as away:
            if self.api.lost.is_set():
                raise LeaseLost("the lease was lost", where="/lease_token") from away
            raise
        if isinstance(answer, SessionCredentials):
            return answer
        raise CredentialsUnavailable("the object store is a disk, which has no keys", where="worker.task_credentials")


def _encrypted(secret: bytes, task: str, answer: _Answer) -> bytes:
    nonce = os.urandom(NONCE_BYTES)
    sealed = AESGCM(secret).encrypt(nonce, msgspec.json.encode(answer), task.encode())
    return base64.b64encode(nonce + sealed) + b"\n"


def _decrypted(secret: bytes, task: str, line: bytes) -> bytes:
    try:
        raw = base64.b64decode(line, validate=False)
        return AESGCM(secret).decrypt(raw[:NONCE_BYTES], raw[NONCE_BYTES:], task.encode())
    except (ValueError, InvalidTag):
        raise CredentialsUnavailable(
            "what answers for the worker is not the worker", where="worker.limits_host"
        ) from None
