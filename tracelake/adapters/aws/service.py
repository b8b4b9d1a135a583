"""Calls to one service of AWS: one client, retries with jitter, and errors that say what to do.

aiobotocore finds credentials by AWS's own chain and renews those that expire. Its own retries are off: a call is
repeated here, within bounds, as calls to every other service of Trace are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any, Final

from tracelake.adapters.aws.faults import Fault, fault_of
from tracelake.errors import SettingsError, Unavailable
from tracelake.runtime.retry import delays

CONNECTIONS: Final = 32
CONNECT_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 15.0
"""How long an answer may take, beside what the call itself waits for."""
LONGEST_WAIT_SECONDS: Final = 20.0
"""A long poll of SQS, the longest that a call waits on the server unless a service says otherwise."""


class AwsRefusal(Exception):
    """A refusal that the caller handles: the call is not repeated for it."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class AwsFault(Exception):
    """Why one request has failed."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


class AwsService:
    """Belongs to one event loop. The client is made by the first call."""

    def __init__(
        self,
        name: str,
        region: str,
        endpoint: str | None,
        *,
        unavailable: type[Unavailable],
        retry_for: timedelta = timedelta(seconds=10),
        longest_wait: float = LONGEST_WAIT_SECONDS,
        connections: int = CONNECTIONS,
        on_client: Callable[[Any], None] = lambda _client: None,
    ) -> None:
        """`on_client`: called with each client that is made."""
        self.name, self.region = name, region
        self._endpoint, self._unavailable = endpoint, unavailable
        self._retry_for = retry_for.total_seconds()
        self._longest_wait, self._connections, self._on_client = longest_wait, connections, on_client
        self._client: Any = None
        self._opened = AsyncExitStack()
        self._opening = asyncio.Lock()
        self._closing = False

    async def call(
        self, operation: str, *, handled: frozenset[str] = frozenset(), waits: float = 0.0, **parameters: Any
    ) -> dict[str, Any]:
        """The answer; `retry_for` ends the repetition, not a call under way.

        `handled`: codes raised as AwsRefusal. `waits`: how long the server itself may wait.
        """
        deadline = _now() + waits + self._retry_for
        pauses = delays()
        while True:
            try:
                return await self.call_once(operation, waits=waits, **parameters)
            except AwsFault as failed:
                fault = failed.fault
            if fault.code in handled:
                raise AwsRefusal(fault.code)
            pause = next(pauses)
            if self._closing or not fault.passes or _now() + pause >= deadline:
                raise self._as_error(fault)
            await asyncio.sleep(pause)

    async def call_once(self, operation: str, *, waits: float, **parameters: Any) -> dict[str, Any]:
        """For a call that must not happen twice: one request. AwsFault if it fails, also after it was done."""
        client = None
        try:
            async with asyncio.timeout(waits + ANSWER_SECONDS):
                client = await self._open()
                answer: dict[str, Any] = await getattr(client, operation)(**parameters)
                return answer
        except Exception as wrong:  # noqa: BLE001 - what is not of AWS is raised again
            fault = fault_of(wrong, self.name, operation, parameters)
        if fault.expired:
            await self._renew(client)
        raise AwsFault(fault)

    async def close(self) -> None:
        self._closing = True
        async with self._opening:
            self._client = None
            await self._opened.aclose()

    async def _open(self) -> Any:
        if self._client is not None:
            return self._client
        async with self._opening:
            if self._closing:
                raise self._unavailable(f"the client of {self.name} was closed")
            if self._client is None:
                self._client = await self._opened.enter_async_context(self._new_client())
                self._on_client(self._client)
            return self._client

    async def _renew(self, expired: Any) -> None:
        """The next call looks for credentials anew: a file of them may have been replaced."""
        async with self._opening:
            if self._client is expired and expired is not None:
                self._client = None
                await self._opened.aclose()

    def _new_client(self) -> Any:
        try:
            from aiobotocore.config import AioConfig
            from aiobotocore.session import get_session

            from tracelake.adapters.aws.connections import KeepAliveSession
        except ImportError:
            raise SettingsError(
                f"{self.name} of AWS needs aiobotocore", where=self.name, hint="pip install 'tracelake[aws]'"
            ) from None
        config = AioConfig(
            max_pool_connections=self._connections,
            connect_timeout=CONNECT_SECONDS,
            read_timeout=self._longest_wait + ANSWER_SECONDS,
            retries={"total_max_attempts": 1},
            http_session_cls=KeepAliveSession,
        )
        return get_session().create_client(
            self.name, region_name=self.region, endpoint_url=self._endpoint, config=config
        )

    def _as_error(self, fault: Fault) -> Unavailable:
        where = f"{self.name} in {self.region}" if self._endpoint is None else f"{self.name} at {self._endpoint}"
        return self._unavailable(fault.message, where=where, hint=fault.hint)


def _now() -> float:
    return asyncio.get_running_loop().time()
