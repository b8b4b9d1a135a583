"""The entry of the audit that credentials leave: for an attempt that runs, and stored before it gets them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.support.dispatcher.job_chain import a_task, claimed, completion, deploy_chain
from tracelake.dispatcher.audit.credentials import CredentialsEntry, store_credentials
from tracelake.dispatcher.control import Control
from tracelake.errors import LeaseLost
from tracelake.wire.task.lifecycle import Claimed

pytestmark = pytest.mark.anyio

FORGERIES: tuple[dict[str, Any], ...] = ({"attempt": 2}, {"lease_token": UUID(int=7)})
LIST = "SELECT actor FROM audit_entries WHERE action = 'credentials' ORDER BY id"


@dataclass(frozen=True)
class Named:
    task_id: UUID
    attempt: int
    lease_token: UUID


def entry(task: Claimed, **forged: Any) -> CredentialsEntry:
    fence = {"task_id": task.task.task_id, "attempt": task.attempt, "lease_token": task.lease_token, **forged}
    return CredentialsEntry(Named(**fence), "192.0.2.1", {"session": "s"})


async def stored(control: Control, *entries: CredentialsEntry) -> list[str]:
    """How each was answered."""
    return [str(answer or "stored") for answer in await store_credentials(control.hot, entries)]


@pytest.mark.parametrize("forged", FORGERIES, ids=["attempt", "token"])
async def test_an_attempt_that_is_not_the_current_one_leaves_no_entry(control: Control, forged: dict[str, Any]) -> None:
    chain = await deploy_chain(control)
    task, _ = await claimed(control, await a_task(control, chain))
    assert await stored(control, entry(task, **forged)) == ["another attempt is the current one"]
    assert await control.pool.fetch(LIST) == []


async def test_each_of_a_batch_is_answered_by_itself_and_in_order(control: Control) -> None:
    chain = await deploy_chain(control)
    (first, _), (second, claims) = [await claimed(control, await a_task(control, chain)) for _ in range(2)]
    await control.completer()(completion(second), claims)
    asked = [entry(second), entry(first), entry(first, task_id=uuid4()), entry(first, **FORGERIES[0])]
    gone = "another attempt is the current one"
    assert await stored(control, *asked) == ["the attempt is over: the task is Completed", "stored", gone, gone]
    assert [row["actor"] for row in await control.pool.fetch(LIST)] == [f"task {first.task.task_id}"]


async def test_entries_asked_for_together_are_one_statement(control: Control) -> None:
    """Of calls for credentials at once, one runs and the others wait for it and share the next."""
    chain = await deploy_chain(control)
    tasks = [(await claimed(control, await a_task(control, chain)))[0] for _ in range(5)]
    record = control.credential_mint().record
    assert await record.settled([entry(task) for task in tasks]) == [None] * 5
    rows = await control.pool.fetch("SELECT DISTINCT xmin::text FROM audit_entries WHERE action = 'credentials'")
    assert len(rows) == 1, "one transaction"


async def test_a_refusal_of_one_is_none_of_the_others(control: Control) -> None:
    chain = await deploy_chain(control)
    (task, _), (other, _) = [await claimed(control, await a_task(control, chain)) for _ in range(2)]
    answers = await control.credential_mint().record.settled([entry(task, attempt=9), entry(other)])
    assert isinstance(answers[0], LeaseLost)
    assert answers[1] is None
