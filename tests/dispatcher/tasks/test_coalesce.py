"""Concurrent calls of one verb run as one batch; a call whose caller has gone is not made."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence

import pytest

from tracelake.runtime.coalesce import Coalesced

pytestmark = pytest.mark.anyio


async def test_calls_that_come_while_one_runs_share_a_batch_and_each_gets_its_own_answer() -> None:
    batches: list[list[int]] = []

    async def run(requests: Sequence[int]) -> Sequence[int | Exception]:
        batches.append(list(requests))
        await asyncio.sleep(0)
        return [ValueError(str(number)) if number == 3 else number * 10 for number in requests]

    call: Coalesced[int, int] = Coalesced(run, key=lambda answer: answer)
    answers = await asyncio.gather(*(call(number) for number in range(6)), return_exceptions=True)
    assert [a for a in answers if isinstance(a, int)] == [0, 10, 20, 40, 50]
    assert isinstance(answers[3], ValueError)
    assert batches == [[0], [1, 2, 3, 4, 5]]


@pytest.mark.parametrize("together", [False, True])
async def test_a_call_whose_caller_has_gone_is_not_made(together: bool) -> None:
    requested: list[int] = []
    first = asyncio.Event()

    async def run(requests: Sequence[int]) -> Sequence[int]:
        requested.extend(requests)
        await first.wait()
        return requests

    call: Coalesced[int, int] = Coalesced(run, key=lambda answer: answer)
    first_call = asyncio.create_task(call(1))
    await asyncio.sleep(0)
    gone = asyncio.create_task(call.together([2, 3]) if together else call(2))
    await asyncio.sleep(0)
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    first.set()
    assert await first_call == 1
    assert await call(4) == 4
    assert requested == [1, 4]


def test_a_loop_that_ends_in_the_middle_of_a_batch_leaves_no_batch_behind(caplog: pytest.LogCaptureFixture) -> None:
    """The batch that runs survives its cancel (a driver may swallow one); what waits behind it is not begun."""

    async def stubborn(requests: Sequence[int]) -> Sequence[int]:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return requests
        return requests

    async def main() -> None:
        call: Coalesced[int, int] = Coalesced(stubborn, key=lambda _: 0)
        callers = [asyncio.create_task(call(number)) for number in range(3)]
        await asyncio.sleep(0.01)
        assert not any(caller.done() for caller in callers)

    asyncio.run(main())
    gc.collect()
    assert "Task was destroyed" not in caplog.text
