"""The sink and its Dispatcher die at every commit and side effect: every row is there once, every event emitted once.

Real processes, killed by SIGKILL; but for one test Spark is not there (`tests/support/programs/fork_server.py`): what
it would run is run in the sink's own process, so that a chain of them takes seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from tests.support.faults.backends import DEADLY
from tests.support.faults.deaths import dies_at
from tests.support.systems.caller import Caller, calling
from tests.support.systems.processes import ForkServer, System, a_system
from tests.support.systems.sink import ALERTS, alert, lines
from tests.support.waiting import SECONDS, until
from tracelake.adapters.objects_disk import DiskObjects
from tracelake.domain.access.storage_locations import buffer_folder
from tracelake.domain.crash_points import POINTS
from tracelake.settings import SinkSettings

pytestmark = pytest.mark.anyio

AT_SINK = [item for item in POINTS if item.startswith(("sink.", "merge_batches."))]
AT_DISPATCHER = [
    item
    for item in POINTS
    if item.startswith(("settle_buffers.", "delete_applied_batches.", "replay_batch.", "republish_batches."))
]


@pytest.fixture
async def system(
    anyio_backend: str, fork_server: ForkServer, state_db: str, queue_db: str, tmp_path: Path
) -> AsyncIterator[System]:
    del anyio_backend
    async with a_system(fork_server, state_db, queue_db, tmp_path) as made:
        yield made


@dataclass
class Producing:
    """A task that publishes batch after batch, good ones and dead ones, whichever process dies meanwhile."""

    system: System
    caller: Caller
    claimed: dict[str, Any] = field(default_factory=dict)
    published: list[UUID] = field(default_factory=list)
    widened: int = 0

    async def begin(self) -> None:
        await self.deploy("watch", ALERTS)
        status, said = await self.caller.user(
            "POST", "/dags/watch/jobs/ask/trigger", {"request_id": uuid4(), "cursor": 1}
        )
        assert status == 200, said
        task = await until(lambda: self.system.pool.fetchval(WAITING), "a task waits to be claimed")
        request = {"task_id": task, "worker_id": "a producer"}
        status, self.claimed = await self.caller.internal("/internal/task-claim", request)
        assert self.claimed["status"] == "Claimed", self.claimed

    async def deploy(self, dag: str, text: str) -> None:
        await self.caller.activate(dag, await self.caller.deployed(dag, text))

    async def widen(self) -> None:
        """A table of another DAG, and one more column at each call: the sink is notified of it."""
        self.widened += 1
        await self.deploy("wide", WIDE + "".join(f"      more_{number}: text\n" for number in range(self.widened)))

    async def publish(self, name: str | None = None) -> None:
        """Every third batch is refused, but for one that is named."""
        number = len(self.published)
        rows = [alert(f"own {number}"), alert("shared", block_number=number)]
        body = lines(rows) if number % 3 or name else lines([*rows, {"no": "alert"}])
        task = self.claimed["task"]
        dataset = UUID(task["outputs"][0]["dataset_uuid"])
        folder = buffer_folder("trace-scratch", dataset, UUID(task["task_id"]), 1)
        put = folder.object(name or f"{number}.jsonl")
        DiskObjects(self.system.folder / "home" / "objects").put(put, body)
        fence = {"task_id": task["task_id"], "attempt": 1, "lease_token": self.claimed["lease_token"]}
        request = {**fence, "batch_uri": str(put), "dedupe_scope": "alert_events"}
        status, said = await self.caller.task("/v1/task/buffer-publish", request, self.claimed["capability_token"])
        assert status == 200, said
        self.published.append(UUID(said["publish_id"]))

    async def replay(self) -> None:
        """One of those that are dead, repaired; a repeated call finds it tried again already."""
        dead = await self.system.pool.fetchval("SELECT id FROM buffer_publishes WHERE status = 'Dead' LIMIT 1")
        if dead:
            body = {"batch": "eyJkZWR1cGVfa2V5IjoicmVwYWlyZWQiLCJzZXZlcml0eSI6ImxvdyJ9"}
            status, said = await self.caller.user("POST", f"/sink/dead/{dead}/replay", body)
            assert status in {200, 409}, said

    async def go_on(self, stop: asyncio.Event, *, widens: bool) -> None:
        while not stop.is_set():
            await self.publish()
            if widens:
                await self.widen()
            else:
                await self.replay()
            for statement in OLD:
                await self.system.pool.execute(statement)
            await asyncio.sleep(0.1)


WIDE = """
name: wide
jobs: [{name: ask, operator: noop, runtime: dispatcher, source: {kind: manual}}]
publish:
  wide_events:
    storage: postgres
    write_mode: buffered
    unique_key: [id]
    columns:
      id: text
"""
WAITING = """
SELECT t.id FROM tasks t JOIN jobs j ON j.id = t.job_id
 WHERE j.name = 'detect' AND t.status = 'Queued' AND t.woken_at IS NOT NULL
"""
OLD = (
    "UPDATE buffer_publishes SET settled_at = settled_at - interval '2 h' WHERE status = 'Committed'",
    # A message that several sinks died over is a dead letter of its queue.
    "UPDATE buffer_publishes SET sent_at = sent_at - interval '2 h' WHERE status = 'Accepted' AND random() < 0.1",
)
OPEN = """
SELECT (SELECT count(*) FROM buffer_publishes WHERE status = 'Accepted')
     + (SELECT count(*) FROM outbox WHERE status IN ('Pending', 'Processing'))
"""


async def test_a_sink_dies_at_each_point_and_every_row_and_event_is_there_once(system: System, data_db: str) -> None:
    async with calling(system) as caller:
        system.dispatcher()
        producing = Producing(system, caller)
        await producing.begin()
        async with _producing(producing, widens=True):
            for point in AT_SINK:
                await dies_at(system.sink(data_db, point=point), point)
                await system.elapse(leases=False)  # what it held comes again
            system.sink(data_db)
        await _drained(system)
    await _assert_rows_and_events(system, data_db, producing)


async def test_a_batch_over_which_every_sink_dies_is_set_aside_as_dead_and_those_behind_it_go_on(
    system: System, data_db: str
) -> None:
    async with calling(system) as caller:
        system.dispatcher()
        producing = Producing(system, caller)
        await producing.begin()
        for name in ("a.jsonl", DEADLY, "b.jsonl", "c.jsonl"):
            await producing.publish(name)
        deadly = producing.published[1]
        for _ in range(SinkSettings().max_crashes):
            sink = system.sink(data_db, role="deadly_sink")
            assert await sink.ended(60), sink.said()
            await system.elapse(leases=False)
            await system.pool.execute("UPDATE buffer_publishes SET sent_at = sent_at - interval '2 h'")
        last = system.sink(data_db, role="deadly_sink")
        await producing.publish("d.jsonl")
        await _drained(system)
        sql = "SELECT id, status::text, error_message FROM buffer_publishes"
        found = {row["id"]: (row["status"], row["error_message"]) for row in await system.pool.fetch(sql)}
        assert found.pop(deadly) == ("Dead", "5 sinks in turn died while they read this batch")
        assert set(found.values()) == {("Committed", None)}
        await last.kill()
        system.sink(data_db)
        status, said = await caller.user("POST", f"/sink/dead/{deadly}/replay", {})
        assert status == 200, said
        await _drained(system)
    await _assert_rows_and_events(system, data_db, producing, refused=0)
    with psycopg.connect(data_db) as data:
        assert data.execute("SELECT count(*) FROM trace_meta.batches_in_progress").fetchone() == (0,)


async def test_a_dispatcher_dies_while_it_settles_replays_or_clears_and_nothing_is_lost_or_doubled(
    system: System, data_db: str
) -> None:
    async with calling(system) as caller:
        first = system.dispatcher()
        producing = Producing(system, caller)
        await producing.begin()
        system.sink(data_db)
        await first.kill()
        async with _producing(producing, widens=False):
            for point in AT_DISPATCHER:
                await dies_at(system.dispatcher(point=point), point)
                await system.elapse(leases=False)
            system.dispatcher()
        await _drained(system)
    await _assert_rows_and_events(system, data_db, producing)


@pytest.mark.long
async def test_a_sink_with_its_own_spark_dies_between_staging_and_merge_and_the_next_one_finishes(
    system: System, data_db: str
) -> None:
    async with calling(system) as caller:
        system.dispatcher()
        producing = Producing(system, caller)
        await producing.begin()
        for _ in range(7):
            await producing.publish()
        await dies_at(system.sink(data_db, point="sink.staged", role="spark_sink"), "sink.staged")
        with psycopg.connect(data_db) as data:
            assert data.execute(STAGED).fetchone() == (1, 0), "rows wait, and none is in the table"
        await system.elapse(leases=False)
        system.sink(data_db)  # a second session would cost as much again, and show nothing more
        await _drained(system)
    await _assert_rows_and_events(system, data_db, producing)


STAGED = """
SELECT (SELECT count(*) FROM pg_class WHERE relnamespace = 'staging'::regnamespace AND relkind = 'r'),
       (SELECT count(*) FROM trace_meta.applied_batches)
"""


class _producing:  # noqa: N801 - a verb
    """Publishes for as long as the block lasts."""

    def __init__(self, producing: Producing, *, widens: bool) -> None:
        self._stop = asyncio.Event()
        self._work = producing.go_on(self._stop, widens=widens)

    async def __aenter__(self) -> None:
        self._task = asyncio.create_task(self._work)

    async def __aexit__(self, *_: object) -> None:
        self._stop.set()
        await self._task


async def _drained(system: System) -> None:
    """Time passes when nothing moves, and not before, so that held messages stay held."""
    left, still = -1, 0
    async with asyncio.timeout(SECONDS):
        while now := await system.pool.fetchval(OPEN):
            left, still = now, still + 1 if now == left else 0
            if still and still % 40 == 0:
                await system.elapse(leases=False)
                await system.pool.execute("UPDATE buffer_publishes SET sent_at = sent_at - interval '2 h'")
            await asyncio.sleep(0.05)


async def _assert_rows_and_events(system: System, data_db: str, producing: Producing, refused: int = 3) -> None:
    """`refused`: every so many of the batches; 0: none."""
    rows = await system.pool.fetch("SELECT id, status::text, seq FROM buffer_publishes")
    committed = {row["id"]: row["seq"] for row in rows if row["status"] == "Committed"}
    assert {row["id"] for row in rows} == set(producing.published)
    assert len(committed) > 3
    events = await system.pool.fetch("SELECT cursor_value FROM events WHERE origin = 'sink'")
    assert sorted(row["cursor_value"] for row in events) == sorted(committed.values())
    numbers = await system.pool.fetch("SELECT number FROM commits WHERE scope LIKE 'publish:%' ORDER BY 1")
    assert [row["number"] for row in numbers] == list(range(1, len(committed) + 1))
    followed = await system.pool.fetchval(
        "SELECT count(*) FROM events e JOIN datasets d ON d.id = e.dataset_uuid WHERE d.producer_job_name = 'after'"
    )
    assert followed == len(committed), "one task downstream for each batch"
    version = await system.pool.fetchval("SELECT dataset_version FROM buffered_datasets WHERE name = 'alert_events'")
    with psycopg.connect(data_db) as data:
        table = f"b_{version.hex}"
        applied: dict[UUID, int] = dict(
            data.execute("SELECT publish_id, seq FROM trace_meta.applied_batches").fetchall()
        )
        keys = data.execute(f"SELECT dedupe_key FROM buffered.{table} WHERE dedupe_key LIKE 'own %'").fetchall()  # noqa: S608
    assert applied == committed
    good = {
        f"own {number}"
        for number, id_ in enumerate(producing.published)
        if id_ in committed and (not refused or number % refused)
    }
    assert sorted(key for (key,) in keys) == sorted(good)
