"""Logs of tasks: stored once, in order, up to a limit, and only of the current attempt."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.support.dispatcher.control import an_org
from tests.support.dispatcher.job_chain import a_task, claimed, completion, deploy_chain
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.maintenance.prune import PruneLogs
from tracelake.dispatcher.tasks.read_logs import read_logs
from tracelake.dispatcher.tasks.store_logs import LINE, ROOM, store_logs
from tracelake.errors import LeaseLost, NotFound
from tracelake.wire.task.lifecycle import Claimed, LogLine, LogsRequest
from tracelake.wire.user.tasks import LogsQuery

pytestmark = pytest.mark.anyio

NOW = datetime.now(UTC)
FORGERIES: tuple[dict[str, Any], ...] = ({"attempt": 2}, {"lease_token": UUID(int=7)})


def lines(task: Claimed, *texts: str, first: int = 0, **forged: Any) -> LogsRequest:
    fence = {"task_id": task.task.task_id, "attempt": task.attempt, "lease_token": task.lease_token, **forged}
    return LogsRequest(first=first, lines=[LogLine(at=NOW, text=text) for text in texts], **fence)


async def shown(control: Control, org: UUID, task: Claimed, **query: Any) -> list[str]:
    found = await read_logs(control.pool, org, task.task.task_id, LogsQuery(**query))
    return [line.text for line in found.lines]


async def test_lines_said_again_are_kept_once_and_shown_in_their_order(control: Control) -> None:
    chain = await deploy_chain(control)
    task, _ = await claimed(control, await a_task(control, chain))
    await store_logs(control.hot, lines(task, "c", "d", first=2))
    assert (await store_logs(control.hot, lines(task, "a", "b"))).kept == 2
    assert (await store_logs(control.hot, lines(task, "b", "c", "d", "e", first=1))).kept == 1
    assert await shown(control, chain.org.id, task) == ["a", "b", "c", "d", "e"]
    assert await shown(control, chain.org.id, task, first=3, limit=1) == ["d"]


async def test_lines_per_attempt_and_their_length_are_limited(control: Control) -> None:
    chain = await deploy_chain(control)
    task, _ = await claimed(control, await a_task(control, chain))
    answer = await store_logs(control.hot, lines(task, "x" * 8000, "nul \x00 here", *["y"] * 998))
    assert (answer.kept, answer.full) == (ROOM, True)
    assert await store_logs(control.hot, lines(task, "more", first=ROOM)) == type(answer)(kept=0, full=True)
    assert (await store_logs(control.hot, lines(task, *["z"] * 10, first=ROOM - 1))).kept == 0
    texts = await shown(control, chain.org.id, task)
    assert len(texts) == ROOM
    assert len(texts[0]) == LINE
    assert texts[1] == "nul \N{REPLACEMENT CHARACTER} here"


@pytest.mark.parametrize("forged", FORGERIES, ids=["attempt", "token"])
async def test_only_lines_of_the_current_attempt_are_stored_also_when_it_has_just_ended(
    control: Control, forged: dict[str, Any]
) -> None:
    chain = await deploy_chain(control)
    task, claims = await claimed(control, await a_task(control, chain))
    await control.completer()(completion(task), claims)
    assert (await store_logs(control.hot, lines(task, "my last word"))).kept == 1
    with pytest.raises(LeaseLost):
        await store_logs(control.hot, lines(task, "not mine", first=1, **forged))
    assert await shown(control, chain.org.id, task) == ["my last word"]


async def test_another_organisation_sees_no_such_task(control: Control) -> None:
    chain, other = await deploy_chain(control), await an_org(control.pool, "other")
    task, _ = await claimed(control, await a_task(control, chain))
    await store_logs(control.hot, lines(task, "secret"))
    with pytest.raises(NotFound):
        await read_logs(control.pool, other.id, task.task.task_id, LogsQuery())
    with pytest.raises(NotFound):
        await read_logs(control.pool, chain.org.id, uuid4(), LogsQuery())


async def test_old_lines_are_pruned_and_no_others(control: Control) -> None:
    chain = await deploy_chain(control)
    task, _ = await claimed(control, await a_task(control, chain))
    await store_logs(control.hot, lines(task, "old", "new"))
    await control.pool.execute("UPDATE task_logs SET received_at = now() - interval '15 days' WHERE text = 'old'")
    assert await PruneLogs(control.hot, timedelta(days=14)).once() == 1
    assert await shown(control, chain.org.id, task) == ["new"]
