"""A JSON-RPC client for a pool of nodes: batches, bounded concurrency, another node when one fails.

`work` gives a piece of work one endpoint (a `Lane`) at a time until it succeeds. The work checks the responses and
raises a ProviderError, so that a wrong node is treated like one that is down. Errors name an endpoint, never its
address.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Self, TypeVar

import aiohttp
import msgspec
import structlog
import uvloop

from tracelake.chain.nodes.errors import read_error, read_status
from tracelake.chain.nodes.health import EndpointState, health_of
from tracelake.chain.nodes.responses import (
    Answer,
    Block,
    BlockAnswer,
    RawResponse,
    TxReceipt,
    read_answers,
    read_block_answers,
    read_text,
)
from tracelake.chain.nodes.rpc_pool import RpcPool
from tracelake.errors import InvalidRequest, ProviderError, ProviderLied, ProviderUnavailable, SizeRefused, WrongChain
from tracelake.runtime.read_body import read_bounded

T = TypeVar("T")
RpcCall = tuple[str, Sequence[Any]]
"""A method and its parameters."""

log = structlog.get_logger()
_LONGEST_NUMBER = 66
"""Characters of 256 bits in hex."""
_LONGEST_REASON = 300
"""A node that answers with a number of a million digits is not to fill our logs with it."""
_encode = msgspec.json.Encoder().encode


class RpcClient:
    """Use as an async context manager. One per event loop; cheap to make: limits and rests are the process's."""

    def __init__(self, pool: RpcPool) -> None:
        self.pool = pool
        self.health = health_of(pool)
        self.checked: set[int] = set()
        """Places of the endpoints whose chain id this client has seen to be right."""
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=self.pool.timeout),
            connector=aiohttp.TCPConnector(limit=self.pool.max_concurrency),
            headers={"Content-Type": "application/json"},
            read_bufsize=1 << 20,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def work(
        self,
        task: Callable[[Lane], Awaitable[T]],
        *,
        splittable: bool = False,
        only: int | None = None,
        attempts: int | None = None,
    ) -> T:
        """Do it with one endpoint after the other, or with the one at place `only`; `attempts` times, or the pool's.

        `splittable`: the caller answers SizeRefused by asking for less, so it goes out at once.
        """
        refused: dict[int, ProviderError] = {}
        tries = attempts or self.pool.attempts
        for attempt in range(1, tries + 1):
            one = await self.health.choose(avoid=set(refused), only=only)
            began = time.monotonic()
            try:
                result = await task(Lane(self, one))
            except ProviderError as error:
                if splittable and isinstance(error, SizeRefused):
                    raise
                self.health.failed(one, error, began)
                log.warning("endpoint_failed", pool=self.pool.name, endpoint=one.endpoint.label, error=error.code)
                if not error.retryable:
                    refused[one.place] = error
                if attempt == tries or len(refused) == (len(self.pool.endpoints) if only is None else 1):
                    raise
            else:
                self.health.worked(one)
                return result
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def post(self, standing: EndpointState, body: bytes, calls: int) -> bytes:
        """One HTTP request; every failure is a ProviderError without an address in it."""
        assert self._session is not None, "use the client as a context manager"  # noqa: S101 - a bug of the caller
        label = standing.endpoint.label
        async with self.health.limits.permit(standing.place, calls, self.pool.counted_for):
            try:
                async with self._session.post(
                    standing.endpoint.url, data=body, headers=standing.endpoint.headers, allow_redirects=False
                ) as response:
                    content = await self._read(response, label)
                    if response.status != 200:  # noqa: PLR2004 - all good
                        raise read_status(standing.endpoint, response.status, response.headers, content)
                    return content
            except TimeoutError:
                raise ProviderUnavailable(f"{label} did not answer in {self.pool.timeout:g} s", where=label) from None
            except (aiohttp.ClientError, OSError) as error:
                message = f"{label} cannot be reached or broke off ({type(error).__name__})"
                raise ProviderUnavailable(message, where=label) from None

    async def _read(self, response: aiohttp.ClientResponse, label: str) -> bytes:
        """A batch or a range with too large an answer is asked for in parts, as if the node had refused it."""
        try:
            return await read_bounded(response.content.iter_any(), self.pool.response_bytes)
        except InvalidRequest:
            message = f"{label} answered with more than {self.pool.response_bytes} bytes"
            raise SizeRefused(message, where=label) from None


class Lane:
    """One endpoint, for one piece of work."""

    def __init__(self, client: RpcClient, standing: EndpointState) -> None:
        self._client = client
        self.standing = standing
        self.label = standing.endpoint.label

    async def ask(self, calls: Sequence[RpcCall]) -> list[msgspec.Raw]:
        """Answers in the order of the calls, undecoded; the first error among them is raised.

        In as few HTTP requests as the endpoint takes: one that finds a batch too large gets half of it, and no larger
        one again.
        """
        return await self._ask_all(calls, read_answers)

    async def ask_for_blocks(self, calls: Sequence[RpcCall]) -> list[Block | list[TxReceipt] | None]:
        """The same for calls that give whole blocks, or a block's receipts: decoded, but nothing about them checked."""
        return await self._ask_all(calls, read_block_answers)

    async def _ask_all(self, calls: Sequence[RpcCall], decode: Callable[[RawResponse], list[Any] | Any]) -> list[Any]:
        if self.standing.place not in self._client.checked:
            await self._check_chain()
        results: list[Any] = []
        while len(results) < len(calls):
            part = calls[len(results) : len(results) + self.standing.batch_size]
            try:
                results += await self._ask(part, decode)
            except SizeRefused:
                if len(part) == 1:
                    raise
                self.standing.batch_size = min(self.standing.batch_size, len(part) // 2)
        return results

    async def _check_chain(self) -> None:
        (answer,) = await self._ask([("eth_chainId", [])], read_answers)
        found, wanted = self._chain_id(self.read(answer, read_text)), self._client.pool.chain_id
        if found != wanted:
            raise WrongChain(
                f"{self.label} serves chain {found}, and pool {self._client.pool.name} is for chain {wanted}",
                where=self.label,
                hint="correct the pool's chain_id or this endpoint's address",
            )
        self._client.checked.add(self.standing.place)

    def _chain_id(self, text: str) -> int:
        try:
            return int(text if len(text) <= _LONGEST_NUMBER else "", 16)
        except ValueError:
            raise self.lied("its chain id is no number") from None

    async def _ask(self, calls: Sequence[RpcCall], decode: Callable[[RawResponse], list[Any] | Any]) -> list[Any]:
        requests = [
            {"jsonrpc": "2.0", "id": position, "method": method, "params": params}
            for position, (method, params) in enumerate(calls)
        ]
        content = await self._client.post(self.standing, _encode(requests), len(calls))
        answers = self.read(content, decode)
        if not isinstance(answers, list):
            raise self._whole_error(answers)
        return self._in_order(calls, answers)

    def _whole_error(self, answer: Answer | BlockAnswer) -> ProviderError:
        if answer.error is None:
            return ProviderUnavailable(f"{self.label} answered a batch with one answer", where=self.label)
        return read_error(self.standing.endpoint, "a batch", answer.error)

    def _in_order(self, calls: Sequence[RpcCall], answers: Sequence[Answer | BlockAnswer]) -> list[Any]:
        by_id = {answer.id: answer for answer in answers}
        results = []
        for position, (method, _) in enumerate(calls):
            answer = by_id.get(position)
            if answer is None:
                message = f"{self.label} answered {len(answers)} of {len(calls)} calls"
                raise ProviderUnavailable(message, where=self.label)
            if answer.error is not None:
                raise read_error(self.standing.endpoint, method, answer.error)
            if answer.result is msgspec.UNSET:
                raise ProviderUnavailable(f"{self.label} answered {method} with nothing", where=self.label)
            results.append(answer.result)
        return results

    def read(self, content: bytes | msgspec.Raw, decode: Callable[[bytes | msgspec.Raw], T]) -> T:
        """Decode, or say that it cannot be read."""
        try:
            return decode(content)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            message = f"{self.label} answered what cannot be read: {self.standing.endpoint.hide(str(error))}"
            raise ProviderUnavailable(message, where=self.label) from None

    def lied(self, what: str) -> ProviderLied:
        return ProviderLied(f"{self.label}: {what[:_LONGEST_REASON]}", where=self.label)


def run(main: Coroutine[Any, Any, T]) -> T:
    """From synchronous code, such as a Spark executor: in an event loop of its own, gone afterwards."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)
