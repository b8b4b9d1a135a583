"""A batch that the sink refused: wherever its task, its dataset or the system is looked at, it is seen."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.support.dispatcher.control import PULL
from tests.support.dispatcher.job_chain import claimed, completion, drained
from tests.support.operators import registered
from tests.support.systems.command_line import Running, Trace
from tests.support.verbs import publish_buffer
from tracelake.dispatcher.buffers.settle import settle_buffers
from tracelake.dispatcher.control import Control
from tracelake.domain.access.storage_locations import buffer_folder
from tracelake.lite.home import Home, held
from tracelake.wire.task.buffers import BufferPublishRequest, CommittedBatch, DeadBatch, SettleRequest
from tracelake.wire.task.outputs import PublishedBody, StorageRef

pytestmark = pytest.mark.usefixtures("known_operators")


WATCH = """\
name: watch
jobs:
  - {name: ask, operator: noop, runtime: dispatcher, source: {kind: manual}}
  - name: detect
    operator: pull
    runtime: ecs_platform
    inputs: [{from: {job: ask}}]
    outputs: [{dataset: found}, ranges]
publish:
  ranges: {job: detect, output: ranges}
  found:
    storage: postgres
    write_mode: buffered
    columns: {id: text}
    unique_key: [id]
"""


async def publish_two(control: Control, task_id: UUID) -> list[UUID]:
    """The task publishes two batches and a range, and completes; the sink takes one batch and refuses the other."""
    task, claims = await claimed(control, task_id)
    found, ranges = task.task.outputs
    fence: dict[str, Any] = {"task_id": task_id, "attempt": task.attempt, "lease_token": task.lease_token}
    folder = buffer_folder("trace-scratch", found.dataset_uuid, task_id, task.attempt)
    publishes = []
    for name in ("good.jsonl", "bad.jsonl"):
        control.objects.put(folder.object(name), b"{}")
        request = BufferPublishRequest(**fence, dataset_uuid=found.dataset_uuid, batch_uri=str(folder.object(name)))
        publishes.append((await publish_buffer(control, request, claims)).publish_id)
    _, _, bucket, prefix = ranges.storage_location.split("/", 3)
    published = PublishedBody(
        dataset_uuid=ranges.dataset_uuid,
        dataset_version=ranges.dataset_version,
        storage_ref=StorageRef(scheme="s3", bucket=bucket, prefix=prefix, glob="ranges_100_200.parquet"),
        range_start=100,
        range_end=200,
    )
    await control.completer()(completion(task, datasets_published=[published]), claims)
    return publishes


@pytest.fixture
def pulling() -> Iterator[None]:
    with registered(pull=PULL):
        yield


@pytest.mark.usefixtures("pulling")
def test_a_dead_batch_is_seen_wherever_its_task_its_dataset_or_the_system_is_looked_at(
    running: Running, trace: Trace, home: Home, file: Path
) -> None:
    file.write_text(WATCH)
    assert trace("dag", "deploy", str(file), "--activate").code == 0
    assert trace("trigger", "watch", "ask", "--range", "0-9").code == 0
    running.do(drained(running.control))
    (task,) = (item["id"] for item in trace("task", "list", "--json").json["tasks"] if item["job"] == "detect")
    good, bad = running.do(publish_two(running.control, UUID(task)))
    waiting = trace("why", task)
    assert "2 of its 2 batches are on their way to the sink" in waiting.out
    assert "waits_for_sink" in waiting.out
    settled = SettleRequest(
        committed=[CommittedBatch(publish_id=good, seq=1, rows=1, bytes=9)],
        dead=[DeadBatch(publish_id=bad, line=7, reason="there is no column 'idd'")],
    )
    running.do(settle_buffers(running.control.pool, running.control.after_commit.outbox, settled))
    why = trace("why", task)
    assert "the sink refused 1 of its 2 batches" in why.out
    assert f"trace sink replay {bad}" in why.out
    assert "batch_dead" in why.out
    for words in (("task", "show", task), ("datasets", "show", "found"), ("sink", "dead")):
        shown = trace(*words)
        (line,) = (item for item in shown.out.splitlines() if str(bad) in item)
        assert "7" in line.split(), words
        assert "there is no column 'idd'" in line, words
        assert words[0] == "sink" or "trace sink replay" in shown.out, words
    assert "1 committed, 1 dead" in trace("task", "show", task).out
    assert "1 of its batches dead" in trace("task", "list").out
    listed = {item["name"]: item["dead_batches"] for item in trace("datasets", "list", "--json").json["datasets"]}
    assert (listed["found"], listed["ranges"]) == (1, 0)
    assert trace("sink", "dead", "--json").json["total"] == 1
    home.status.write_text(
        json.dumps({"processes": [{"name": n, "state": "ready"} for n in ("gateway", "dispatcher")]})
    )
    with held(home):
        status = trace("status")
        assert (status.code, trace("status", "--json").json["dead_batches"]) == (0, 1)
    for word in ("1 dead batches", str(bad), "there is no column 'idd'", "trace sink replay"):
        assert word in status.out
    shown_ranges = trace("datasets", "show", "ranges")
    assert "published ranges (1)" in shown_ranges.out
    assert "ranges_100_200.parquet" in shown_ranges.out

    assert trace("sink", "replay", str(bad)).code == 0
    mended = CommittedBatch(publish_id=bad, seq=2, rows=1, bytes=9)
    running.do(
        settle_buffers(running.control.pool, running.control.after_commit.outbox, SettleRequest(committed=[mended]))
    )
    assert "It is completed, and what it wrote counts." in trace("why", task).out
    assert "dead" not in trace("datasets", "show", "found").out
