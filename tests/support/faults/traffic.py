"""Everything that people and tasks ask of a system, round after round, each call until it is answered.

`Traffic` is the people: deploy, activate, trigger, invalidate, cancel, retry. `ByHand` is a worker whose tasks use all
verbs of the task API, and fail, are abandoned and repeat themselves by plan.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import msgspec

from tests.support.dispatcher.staged_files import staged
from tests.support.systems.caller import Caller
from tests.support.systems.processes import System
from tests.support.waiting import until
from tracelake.adapters.pg.queue import PgQueue
from tracelake.domain.access.storage_locations import buffer_folder
from tracelake.errors import ObjectExists
from tracelake.ports import Delivery, ObjectStore
from tracelake.store.db import OUTAGES
from tracelake.wire.task.lifecycle import Claimed

NOT_FOUND, CONFLICT = 404, 409
PROOF = """
name: proof
defaults:
  runtime: dispatcher
  timeout_seconds: 600
  heartbeat_timeout_seconds: 2
  heartbeat_interval_seconds: 1
  max_attempts: 2  # one is for the failures by plan: what is killed or cut off must not use up the other
  retry: {backoff: 1, max_backoff: 1}
jobs:
  - {name: ask, operator: noop, source: {kind: manual}}
  - {name: work, operator: noop, runtime: ecs_platform, inputs: [{from: {job: ask}}]}
  - {name: after, operator: noop, inputs: [{from: {job: work}}]}
  - {name: span, operator: noop, source: {kind: manual}}
  - {name: cut, operator: range_splitter, config: {chunk: 10}, inputs: [{from: {job: span}}]}
  - name: piece
    operator: noop
    runtime: ecs_platform
    scaling: {max_concurrency: 2}
    max_queue_depth: 2  # so that `cut` and `span` are paused again and again
    inputs: [{from: {job: cut}}]
  - {name: join, operator: range_aggregator, config: {size: 30}, inputs: [{from: {job: piece}}]}
  - name: hand
    operator: pull
    runtime: ecs_platform
    inputs: [{from: {job: ask}}]
    outputs: [done, {dataset: proof_batches}]
  - {name: told, operator: noop, inputs: [{from: {job: hand, output: done}}]}
  - {name: parked, operator: noop, runtime: ecs_platform, inputs: [{from: {job: ask}}]}
  - {name: called, operator: noop, runtime: ecs_platform, inputs: [{from: {job: ask}}]}
publish:
  proof_span: {job: span}
  proof_batches: {storage: postgres, write_mode: buffered, columns: {id: text}, unique_key: [id]}
"""
ELSEWHERE = {"hand": "ecs_udf", "parked": "parked", "called": "lambda"}
"""Jobs that run elsewhere: worked by hand, worked by nobody, called as functions."""

BY_HAND = {"tasks-ecs_udf": 8, "tasks-ecs_udf-bulk": 8}
"""The queues of both priorities, and how much is taken of each."""
FLOW = """
name: flow
defaults: {{heartbeat_timeout_seconds: 2, heartbeat_interval_seconds: 1, retry: {{backoff: 1, max_backoff: 1}}}}
jobs:
  - {{name: mark, operator: noop, runtime: dispatcher, source: {{kind: manual}}, timeout_seconds: {number}}}
"""
BRIEF = """
name: brief
jobs:
  - {{name: tick, operator: noop, runtime: dispatcher, source: {{kind: manual}}, timeout_seconds: {number}}}
"""
PULLING = "  - {name: pull, operator: pull, runtime: ecs_platform, source: {kind: always_on}}\n"


@dataclass
class Traffic:
    system: System
    caller: Caller
    accepted: set[UUID] = field(default_factory=set)
    rounds: int = 0
    late: bool = False
    """Whether a Dispatcher freezes during requests, and executes them when it continues."""
    drains: bool = False
    """Whether sources are drained too, as when the system goes down: until a Dispatcher starts, none of them does."""

    async def deploy(self) -> None:
        """Before the first round; `ELSEWHERE` is a change that only tests make."""
        version = await self.caller.deployed("proof", PROOF)
        for job, runtime in ELSEWHERE.items():
            sql = "UPDATE jobs SET runtime = $2 WHERE name = $1"
            await self.system.pool.execute(sql, job, runtime)
        await self.caller.activate("proof", version)

    async def go_on(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await self.round()

    async def round(self) -> None:
        number = self.rounds
        self.rounds += 1
        await asyncio.gather(
            self.trigger("ask", cursor=number),
            self.trigger("span", start=30 * number, end=30 * number + 29),
            self.flow(number, pulls=number % 2 == 0),
            self.caller.user("POST", "/outbox/retry"),
        )
        await asyncio.gather(self.invalidate(number), self.cancel_parked(number), self.revive())
        await self.change_many()
        await self.stop_and_start(number)

    async def trigger(self, job: str, **scope: int) -> None:
        body = {**scope, "request_id": uuid4()}
        status, said = await self.caller.user("POST", f"/dags/proof/jobs/{job}/trigger", body)
        assert status == 200, said
        self.accepted |= {UUID(event) for event in said["event_ids"]}

    async def invalidate(self, number: int) -> None:
        body = {"start": 30 * number, "end": 30 * number + 9, "reason": "a test", "request_id": uuid4()}
        status, said = await self.caller.user("POST", "/datasets/proof_span/invalidate", body)
        assert status == 200, said

    async def flow(self, number: int, *, pulls: bool) -> None:
        text = FLOW.format(number=1000 + number) + (PULLING if pulls else "")
        await self.caller.activate("flow", await self.caller.deployed("flow", text))
        if pulls:
            await self.hold("pull")

    async def hold(self, job: str) -> None:
        """A source is paused and goes on."""
        for verb in ("pause", "resume"):
            status, said = await self.caller.user("POST", f"/dags/flow/jobs/{job}/{verb}")
            if self.late and status == NOT_FOUND:  # a Dispatcher that froze executed an earlier activation now
                return
            assert status == 200, said
        if self.drains:
            status, said = await self.caller.internal("/internal/sources/drain", {})
            assert status == 200, said

    async def cancel_parked(self, number: int) -> None:
        sql = (
            "SELECT t.id FROM tasks t JOIN jobs j ON j.id = t.job_id"
            " WHERE j.name = 'parked' AND (t.input_versions ->> 'cursor')::int = $1"
        )
        task = await until(lambda: self._seen(sql, number), f"the Dispatcher has created parked task {number}")
        status, said = await self.caller.user("POST", f"/tasks/{task}/cancel", {"reason": "nobody works here"})
        assert status == 200, said

    async def revive(self) -> None:
        """What failed for good gets one more attempt; asked twice because the answer was lost, it is queued already."""
        sql = "SELECT id FROM tasks WHERE status = 'Failed' AND next_retry_at IS NULL AND completion_hash IS NOT NULL"
        if (task := await self._seen(f"{sql} LIMIT 1")) is not None:
            status, said = await self.caller.user("POST", f"/tasks/{task}/retry")
            assert status in {200, 409}, said

    async def change_many(self) -> None:
        for verb, body in (("cancel", {"job": "parked", "reason": "nobody works here"}), ("retry", {"job": "hand"})):
            status, said = await self.caller.user("POST", f"/tasks/{verb}", body)
            assert status == 200, said

    async def stop_and_start(self, number: int) -> None:
        await self.caller.activate("brief", await self.caller.deployed("brief", BRIEF.format(number=1000 + number)))
        status, said = await self.caller.user("DELETE", "/dags/brief/active")
        assert status == 200, said
        dataset = await self._seen("SELECT id FROM datasets WHERE producer_dag_name = 'brief'")
        if dataset is not None:
            status, said = await self.caller.user("DELETE", f"/datasets/{dataset}")
            if self.late and status == CONFLICT:  # a Dispatcher that froze executed the activation again now
                return
            assert status == 200, said
        if not self.late:  # executed late, it would delete the version that the next round has deployed
            status, said = await self.caller.user("DELETE", "/dags/brief")
            assert status == 200, said

    async def settle(self) -> None:
        """No source runs any more, and everything has had its attempt: now all can drain."""
        await self.flow(self.rounds + 1, pulls=False)
        await self.system.drained()
        failed = "SELECT count(*) FROM tasks WHERE status = 'Failed' AND worker_id LIKE 'by hand%'"
        while await self.system.pool.fetchval(failed):
            await self.revive()
            await self.system.drained()

    async def _seen(self, sql: str, *arguments: Any) -> Any:
        try:
            return await self.system.pool.fetchval(sql, *arguments)
        except OUTAGES:
            return None


@dataclass
class ByHand:
    caller: Caller
    queue: PgQueue
    objects: ObjectStore
    name: str = "by hand"

    async def work(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                for delivery in await self.queue.receive(
                    BY_HAND, max_messages=8, visibility=timedelta(minutes=2), wait=timedelta(seconds=5)
                ):
                    group.create_task(self._follow(delivery))

    async def _follow(self, delivery: Delivery) -> None:
        body = {"task_id": msgspec.json.decode(delivery.body)["task_id"], "worker_id": self.name}
        status, claimed = await self.caller.internal("/internal/task-claim", body)
        assert status == 200, claimed
        if claimed["status"] == "Claimed" and not await _Attempt(self.caller, self.objects, claimed).run():
            return  # abandoned, as by a worker that died
        await self.queue.ack(delivery.queue, [delivery.receipt])


@dataclass
class _Attempt:
    caller: Caller
    objects: ObjectStore
    claimed: Any

    async def run(self) -> bool:
        cursor, first = self.claimed["task"]["scope"]["cursor"], self.claimed["attempt"] == 1
        if first and cursor % 5 == 3:
            return False
        if not await self._say("heartbeat", {"progress": {"done": cursor}}):
            return True
        if not await self._say("events", {"events": [self._about(cursor=cursor)]}):
            return True
        if not await self._say("buffer-publish", self._batch()):
            return True
        await self._complete(self._end(cursor, first=first))
        return True

    def _end(self, cursor: int, *, first: bool) -> dict[str, Any]:
        if first and cursor % 4 in {1, 2}:
            return {"status": "Failed", "error_message": "as planned", "retryable": cursor % 4 == 1}
        span = {"start": 10 * cursor, "end": 10 * cursor + 9}
        return {
            "status": "Completed",
            "outputs": staged(self.objects, msgspec.convert(self.claimed, Claimed), (span["start"], span["end"])),
            "events": [self._about(**span)],
        }

    async def _complete(self, end: dict[str, Any]) -> None:
        """Twice, by itself and in a batch: the second answer is the first's, unless a retry has begun in between.

        A worker's tasks that end in the same moment are a batch too, but how often that is hangs on the machine.
        """
        first = await self._say("complete", end)
        again = await self._say_in_batch(end) if first else None
        assert again == first or (again is None and end["status"] == "Failed")

    async def _say_in_batch(self, end: dict[str, Any]) -> Any:
        token = self.claimed["capability_token"]
        item = {"capability_token": token, "completion": {**self._fence(), **end}}
        status, said = await self.caller.task("/v1/task/complete-batch", {"items": [item]}, token)
        assert status == 200, said
        (outcome,) = said["outcomes"]
        if "answer" in outcome:
            return outcome["answer"]
        assert outcome["error"]["code"] == "lease_lost", outcome
        return None

    async def _say(self, verb: str, more: dict[str, Any]) -> Any:
        """The answer, or None if the attempt is over."""
        body = {**self._fence(), **more}
        status, said = await self.caller.task(f"/v1/task/{verb}", body, self.claimed["capability_token"])
        if status == 200:
            return said
        assert said["error"]["code"] == "lease_lost", said
        return None

    def _fence(self) -> dict[str, Any]:
        return {
            "task_id": self.claimed["task"]["task_id"],
            "attempt": self.claimed["attempt"],
            "lease_token": self.claimed["lease_token"],
        }

    def _about(self, **scope: int) -> dict[str, Any]:
        output = self.claimed["task"]["outputs"][0]
        return {"dataset_uuid": output["dataset_uuid"], "dataset_version": output["dataset_version"], **scope}

    def _batch(self) -> dict[str, Any]:
        task = self.claimed["task"]
        dataset = next(
            item["dataset_uuid"] for item in task["outputs"] if item["storage_location"].startswith("postgres")
        )
        folder = buffer_folder("trace-scratch", UUID(dataset), UUID(task["task_id"]), self.claimed["attempt"])
        batch = folder.object("batch.jsonl")
        with suppress(ObjectExists):  # the attempt is worked again when an answer was lost
            self.objects.put(batch, b"{}\n{}\n{}\n")
        return {"batch_uri": str(batch), "dataset_uuid": dataset, "record_count": 3}


@asynccontextmanager
async def by_hand(caller: Caller, system: System) -> AsyncIterator[None]:
    queue = PgQueue(system.queue_dsn)
    work = asyncio.create_task(ByHand(caller, queue, system.objects).work())
    try:
        yield
    finally:
        if work.done():
            await work  # it must not end: what ended it is what we want to see
        work.cancel()
        with suppress(asyncio.CancelledError):
            await work
        await queue.close()


@asynccontextmanager
async def flowing(traffic: Traffic) -> AsyncIterator[None]:
    """Round after round while the block lasts, with a worker by hand; then everything drains and is settled."""
    async with by_hand(traffic.caller, traffic.system):
        stop = asyncio.Event()
        going = asyncio.create_task(traffic.go_on(stop))
        try:
            yield
        except BaseException:
            if going.done():
                await going  # it must not end before it is stopped: its error is what we want to see
            going.cancel()
            raise
        stop.set()
        await going
        await traffic.settle()
