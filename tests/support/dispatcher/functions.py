"""A host of functions that does what a test says, and the steps of the loop that calls it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import msgspec

from tests.support.cases.specification import has_shape, variants
from tests.support.dispatcher.job_chain import Chain, a_task, claimed, completion, deploy_chain
from tests.support.waiting import SECONDS
from tracelake.capability.claims import decode
from tracelake.capability.jws import parse_token
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.outbox.drain import Drain
from tracelake.dispatcher.runtimes.call_functions import CallFunctions
from tracelake.ports import Invoked, Places
from tracelake.wire.task.lifecycle import Invocation
from tracelake.wire.task.outputs import CompleteRequest

Act = Callable[[Invocation], Awaitable[Invoked]]


@dataclass
class Host:
    """Runs functions: each does what `act` says."""

    control: Control
    act: Act | None
    """None: it completes its task."""
    capacity: Places | None = None
    """What it says of its places."""
    invocations: list[Invocation] = field(default_factory=list)
    ended: list[UUID] = field(default_factory=list)

    async def invoke(self, payload: bytes, *, org: UUID, timeout_seconds: float) -> Invoked:
        assert org
        assert timeout_seconds == 3600
        invocation = msgspec.json.decode(payload, type=Invocation)
        assert has_shape(variants("001/2")[0], msgspec.json.decode(payload)), "as the specification shows it"
        self.invocations.append(invocation)
        try:
            return await (self.act or self.complete)(invocation)
        except asyncio.CancelledError:
            self.ended.append(invocation.task_id)
            raise

    async def places(self) -> Places | None:
        return self.capacity

    async def complete(self, invocation: Invocation) -> Invoked:
        """As a function does that says so itself."""
        request = CompleteRequest(
            task_id=invocation.task_id,
            attempt=invocation.attempt,
            lease_token=invocation.lease_token,
            status="Completed",
        )
        await self.control.completer()(request, decode(parse_token(invocation.capability_token).payload))
        return Invoked()


async def fan_out(control: Control, tasks: int, slug: str = "acme") -> Chain:
    """`second` runs on functions, and so many events wait for it."""
    chain = await deploy_chain(control, slug=slug)
    await control.pool.execute("UPDATE jobs SET runtime = 'lambda' WHERE id = $1", chain.jobs["second"])
    source, claims = await claimed(control, await a_task(control, chain))
    events = [chain.event("first", cursor=cursor) for cursor in range(tasks)]
    await control.completer()(completion(source, events=events), claims)
    return chain


async def statuses(control: Control, chain: Chain) -> list[str]:
    rows = await control.pool.fetch(
        "SELECT status::text FROM tasks WHERE job_id = $1 ORDER BY id", chain.jobs["second"]
    )
    return [row["status"] for row in rows]


async def until(functions: CallFunctions, drain: Drain, done: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(SECONDS):
        while not await done():
            while await drain.once() + await functions.once():
                pass
            await asyncio.sleep(0.01)


@asynccontextmanager
async def calling(
    control: Control, act: Act | None = None, most: int = 16, capacity: Places | None = None
) -> AsyncIterator[tuple[Host, Any]]:
    host = Host(control, act, capacity)
    functions = control.call_functions(host, most)
    drain = control.drain(functions.signal)

    async def run(done: Callable[[], Awaitable[bool]]) -> None:
        await until(functions, drain, done)

    try:
        yield host, run
    finally:
        await functions.stop()


async def all_are(control: Control, chain: Chain, status: str, count: int) -> bool:
    return await statuses(control, chain) == [status] * count


async def attempts(control: Control, chain: Chain) -> list[int]:
    rows = await control.pool.fetch("SELECT attempt FROM tasks WHERE job_id = $1", chain.jobs["second"])
    return [row["attempt"] for row in rows]
