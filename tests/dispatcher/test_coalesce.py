"""Concurrent calls of one verb go together; nobody's question is asked."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence

import pytest

from tracelake.runtime.coalesce import Coalesced

pytestmark = pytest.mark.anyio


async def test_calls_that_come_while_one_runs_go_together_and_each_hears_its_own_answer() -> None:
    batches: list[list[int]] = []

    async def run(asked: Sequence[int]) -> Sequence[int | Exception]:
        batches.append(list(asked))
        await asyncio.sleep(0)
        return [ValueError(str(invocation)) if invocation == 3 else invocation * 10 for invocation in asked]

    ask: Coalesced[int, int] = Coalesced(run, key=lambda answer: answer)
    answers = await asyncio.gather(*(ask(number) for number in range(6)), return_exceptions=True)
    assert [a for a in answers if isinstance(a, int)] == [0, 10, 20, 40, 50]
    assert isinstance(answers[3], ValueError)
    assert batches == [[0], [1, 2, 3, 4, 5]]


@pytest.mark.parametrize("together", [False, True])
async def test_a_question_whose_caller_has_gone_is_not_asked(together: bool) -> None:
    asked: list[int] = []
    first = asyncio.Event()

    async def run(questions: Sequence[int]) -> Sequence[int]:
        asked.extend(questions)
        await first.wait()
        return questions

    ask: Coalesced[int, int] = Coalesced(run, key=lambda answer: answer)
    one = asyncio.create_task(ask(1))
    await asyncio.sleep(0)
    gone = asyncio.create_task(ask.together([2, 3]) if together else ask(2))
    await asyncio.sleep(0)
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    first.set()
    assert await one == 1
    assert await ask(4) == 4
    assert asked == [1, 4]


def test_a_loop_that_ends_in_the_middle_of_a_batch_leaves_no_batch_behind(caplog: pytest.LogCaptureFixture) -> None:
    """The batch that runs survives its cancel (a driver may swallow one); what waits behind it is not begun."""

    async def stubborn(questions: Sequence[int]) -> Sequence[int]:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return questions
        return questions

    async def main() -> None:
        ask: Coalesced[int, int] = Coalesced(stubborn, key=lambda _: 0)
        callers = [asyncio.create_task(ask(number)) for number in range(3)]
        await asyncio.sleep(0.01)
        assert not any(caller.done() for caller in callers)

    asyncio.run(main())
    gc.collect()
    assert "Task was destroyed" not in caplog.text
