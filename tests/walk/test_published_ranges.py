"""`datasets_published` over the wire: a range is registered once, again without effect, never with other contents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import httpx
import msgspec
import pytest

from tests.support.dispatcher.control import PULL, deployed_and_active
from tests.support.identity.service_tokens import as_gateway
from tests.support.operators import registered
from tests.support.systems.walk import Walk, walking
from tests.support.tls import https
from tests.support.verbs import trigger
from tracelake.wire.message import CAPABILITY_HEADER
from tracelake.wire.task.lifecycle import Claimed
from tracelake.wire.user.datasets import DatasetDetail, PublishedRange

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio

DAG = """
name: mill
defaults: {runtime: ecs_platform}
jobs:
  - {name: ask, operator: pull, source: {kind: manual}, config: {n: 1}}
  - {name: grind, operator: pull, inputs: [{from: {job: ask}}]}
publish:
  flour: {job: grind}
"""
OTHER_GRAIN = DAG.replace("{n: 1}", "{n: 2}")


class Mill:
    """Tasks of `grind`, claimed and completed as any runtime would; and the registry as users see it."""

    def __init__(self, walk: Walk) -> None:
        self._walk = walk

    async def claimed(self) -> Claimed:
        await trigger(
            self._walk.control, self._walk.org.id, "mill", "ask", cursor=uuid4().int >> 70, request_id=uuid4()
        )
        await self._walk.until_outbox_is_empty()
        task = await self._walk.control.pool.fetchval(
            "SELECT t.id FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE t.status = 'Queued' AND j.name = 'grind'"
        )
        found = (await self._walk.dispatcher.claim_batch([task], "a miller"))[0]
        assert isinstance(found, Claimed)
        return found

    async def complete(self, task: Claimed, published: dict[str, Any]) -> httpx.Response:
        """With an event, to see that nothing of a refused completion is stored."""
        output = task.task.outputs[0]
        dataset = {"dataset_uuid": str(output.dataset_uuid), "dataset_version": str(output.dataset_version)}
        body = {
            "task_id": str(task.task.task_id),
            "attempt": task.attempt,
            "lease_token": str(task.lease_token),
            "status": "Completed",
            "events": [{**dataset, "start": 100, "end": 200, "partition_key": "100-200"}],
            "outputs": [],
            "datasets_published": [{**dataset, **published}],
            "error_message": None,
        }
        async with https(self._walk.listeners["dispatcher_task"], self._walk.ca) as http:
            return await http.post("/v1/task/complete", json=body, headers={CAPABILITY_HEADER: task.capability_token})

    async def ranges(self) -> list[PublishedRange]:
        headers = as_gateway("test|acme")
        async with https(self._walk.listeners["dispatcher_internal"], self._walk.ca, headers=headers) as http:
            answer = await http.get("/internal/v1/datasets/flour")
        shown = msgspec.json.decode(answer.content, type=DatasetDetail)
        assert shown.published_ranges == len(shown.newest_published_ranges)
        return shown.newest_published_ranges

    async def events_of(self, task: Claimed) -> int:
        count = "SELECT count(*) FROM events WHERE producer_task_id = $1"
        return int(await self._walk.control.pool.fetchval(count, task.task.task_id))


def a_range(task: Claimed, glob: str = "flour_100_200.parquet", **more: Any) -> dict[str, Any]:
    """As the specification writes it, where the generation lies."""
    _, _, bucket, prefix = task.task.outputs[0].storage_location.split("/", 3)
    ref = {"scheme": "s3", "bucket": bucket, "prefix": prefix, "glob": glob}
    return {"storage_ref": ref, "range_start": 100, "range_end": 200, **more}


def refusal(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["where"]


async def test_a_range_is_registered_once_again_without_effect_and_never_with_other_contents(
    state_db: str, queue_db: str, tmp_path: Path
) -> None:
    with registered(pull=PULL):
        async with walking(state_db, queue_db, tmp_path) as walk:
            await deployed_and_active(walk.control, walk.org, DAG)
            mill = Mill(walk)
            first, second, third = [await mill.claimed() for _ in range(3)]
            answers = [await mill.complete(first, a_range(first)) for _ in range(2)]
            assert [answer.status_code for answer in answers] == [200, 200], [answer.text for answer in answers]
            (known,) = await mill.ranges()
            output = first.task.outputs[0]
            assert (known.start, known.end, known.generation) == (100, 200, output.dataset_version)
            assert (known.storage_location, known.storage_glob) == (output.storage_location, "flour_100_200.parquet")

            assert (await mill.complete(second, a_range(second))).status_code == 200, "by another task"
            assert await mill.ranges() == [known]

            place = "/datasets_published/0/storage_ref"
            assert refusal(await mill.complete(third, a_range(third, glob="other.parquet"))) == (409, place)
            for glob in ("a=b.parquet", "a+b.parquet", "a/b.parquet"):
                assert refusal(await mill.complete(third, a_range(third, glob=glob))) == (400, f"{place}/glob")
            half = {**a_range(third), "range_end": None}
            assert refusal(await mill.complete(third, half)) == (400, "/datasets_published/0/range_start")
            assert (await mill.events_of(third), await mill.ranges()) == (0, [known])
            assert (
                await mill.complete(third, a_range(third, glob="other.parquet", config_hash="x"))
            ).status_code == 200
            assert {item.config_hash for item in await mill.ranges()} == {known.config_hash, "x"}
            assert [await mill.events_of(task) for task in (first, second, third)] == [1, 1, 1]


async def test_the_same_range_of_another_generation_is_another_one(
    state_db: str, queue_db: str, tmp_path: Path
) -> None:
    """Its job is unchanged, and what it reads is not: so the files lie elsewhere."""
    with registered(pull=PULL):
        async with walking(state_db, queue_db, tmp_path) as walk:
            mill = Mill(walk)
            for text in (DAG, OTHER_GRAIN):
                await deployed_and_active(walk.control, walk.org, text)
                task = await mill.claimed()
                answer = await mill.complete(task, a_range(task))
                assert answer.status_code == 200, answer.text
            new, old = await mill.ranges()
            assert new.generation != old.generation
            assert {type(item) for item in (new.generation, old.generation)} == {UUID}
