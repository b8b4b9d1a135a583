"""The tokens of a batch of claims, signed by KMS: each is a request, and none waits for the others."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.support.aws.faulty_aws import Refusal, faulty_aws
from tests.support.identity.signers import kms_settings
from tests.support.systems.walk import Walk, walking
from tests.support.verbs import trigger
from tests.support.waiting import until
from tracelake.errors import Unavailable
from tracelake.wire.task.lifecycle import Claimed

pytestmark = pytest.mark.anyio


async def test_the_tokens_of_a_batch_are_signed_at_the_same_time(
    moto: str, state_db: str, queue_db: str, tmp_path: Path
) -> None:
    async with faulty_aws(moto) as aws, walking(state_db, queue_db, tmp_path, tokens=kms_settings(aws.url)) as walk:
        tasks = await woken_tasks(walk, 3)
        messages, all_asked = set[str](), asyncio.Event()

        async def hold(operation: str, parameters: dict[str, Any]) -> None:
            if operation == "Sign":
                messages.add(parameters["Message"])
                if len(messages) == len(tasks):
                    all_asked.set()
                await all_asked.wait()

        aws.holds = hold
        claimed = await walk.dispatcher.claim_batch(tasks, "a test")
        assert [type(answer) for answer in claimed] == [Claimed] * 3


async def test_a_key_that_is_disabled_costs_a_claim_no_attempt(
    moto: str, state_db: str, queue_db: str, tmp_path: Path
) -> None:
    async with faulty_aws(moto) as aws, walking(state_db, queue_db, tmp_path, tokens=kms_settings(aws.url)) as walk:
        tasks, claim = await woken_tasks(walk, 1), uuid4()
        aws.refuse("Sign", Refusal("DisabledException"), times=1)
        with pytest.raises(Unavailable):
            await walk.dispatcher.claim_batch(tasks, "a test", claim_id=claim)
        again = await walk.dispatcher.claim_batch(tasks, "a test", claim_id=claim)
        assert isinstance(again[0], Claimed)
        assert again[0].attempt == 1


async def woken_tasks(walk: Walk, count: int) -> list[UUID]:
    for cursor in range(count):
        await trigger(walk.control, walk.org.id, "walk", "ask", cursor=cursor, request_id=uuid4())

    async def woken() -> list[UUID]:
        sql = "SELECT t.id FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = 'work' AND t.woken_at IS NOT NULL"
        return [row["id"] for row in await walk.control.pool.fetch(sql)]

    async def all_are() -> list[UUID] | None:
        found = await woken()
        return found if len(found) == count else None

    return await until(all_are, "the tasks are woken")
