"""Files count when their marker lists them and they exist; partitions are replaced whole, and never by older ones."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from tests.support.dispatcher.job_chain import claimed, completion, deploy_chain, drained, tasks_of
from tests.support.dispatcher.staged_files import (
    COLUMNS,
    Partition,
    begun,
    current_partitions,
    finish,
    folder_of,
    staged,
)
from tests.support.waiting import SECONDS, until
from tracelake.adapters.objects_disk import DiskObjects
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.datasets.list_task_files import list_files
from tracelake.dispatcher.datasets.resolve_relations import task_relations
from tracelake.dispatcher.maintenance.delete_orphan_files import DeleteOrphanFiles
from tracelake.domain.access.object_names import Folder, ObjectName
from tracelake.errors import Conflict, Forbidden, Incompatible, InvalidRequest, LeaseLost
from tracelake.wire.internal.queries import RelationsRequest
from tracelake.wire.task.lifecycle import Claimed
from tracelake.wire.task.markers import ColumnEntry, marker_in
from tracelake.wire.task.outputs import FilesRequest, OutputBody

pytestmark = pytest.mark.anyio


async def test_files_with_their_marker_are_committed_and_listed(control: Control) -> None:
    chain = await deploy_chain(control)
    task, claims = await begun(control, chain)
    await finish(control, task, claims, staged(control.objects, task, (0, 99), (100, 199)))
    reader, reads = await begun(control, chain)
    request = FilesRequest(
        task_id=reader.task.task_id,
        attempt=reader.attempt,
        lease_token=reader.lease_token,
        dataset_uuid=chain.datasets["first"],
        start=150,
        end=160,
    )
    found = await list_files(control.pool, request, reads)
    assert found.commit == 1
    assert found.columns == [{"name": "block_number", "type": "int64"}]
    (partition,) = found.partitions
    assert (partition.start, partition.end, partition.row_count) == (100, 199, 100)
    assert partition.files[0]["name"] == "first_100_199.parquet"
    assert partition.location == str(folder_of(task))


async def test_an_attempt_that_has_ended_or_lost_its_lease_cannot_list_files(control: Control) -> None:
    chain = await deploy_chain(control)
    task, claims = await begun(control, chain)
    request = FilesRequest(
        task_id=task.task.task_id,
        attempt=task.attempt,
        lease_token=task.lease_token,
        dataset_uuid=chain.datasets["first"],
    )
    await list_files(control.pool, request, claims)
    for forged in ({"lease_token": uuid4()}, {"attempt": task.attempt + 1}):
        with pytest.raises(LeaseLost, match="another attempt"):
            await list_files(control.pool, msgspec.structs.replace(request, **forged), claims)
    await finish(control, task, claims, staged(control.objects, task, (0, 99)))
    with pytest.raises(LeaseLost, match="the task is Completed"):
        await list_files(control.pool, request, claims)


async def test_an_attempt_that_has_ended_or_lost_its_lease_cannot_query(control: Control) -> None:
    chain = await deploy_chain(control)
    task, claims = await begun(control, chain)
    request = RelationsRequest(tables=[], task_id=task.task.task_id, attempt=task.attempt, lease_token=task.lease_token)
    assert (await task_relations(control.pool, request)).org_id == chain.org.id
    for forged in ({"lease_token": uuid4()}, {"attempt": task.attempt + 1}):
        with pytest.raises(LeaseLost):
            await task_relations(control.pool, msgspec.structs.replace(request, **forged))
    await finish(control, task, claims, staged(control.objects, task, (0, 99)))
    with pytest.raises(LeaseLost):
        await task_relations(control.pool, request)


async def test_a_reader_sees_the_files_of_its_pinned_commit_and_none_that_came_later(control: Control) -> None:
    chain = await deploy_chain(control)
    task, claims = await begun(control, chain)
    outputs = staged(control.objects, task, (0, 99))
    await control.completer()(completion(task, outputs=outputs, events=[chain.event("first", start=0, end=99)]), claims)
    await drained(control)
    (second,) = await tasks_of(control, chain, "second")
    reader, reads = await claimed(control, second)
    again, theirs = await begun(control, chain)
    await finish(control, again, theirs, staged(control.objects, again, (0, 99)))
    request = FilesRequest(
        task_id=reader.task.task_id,
        attempt=reader.attempt,
        lease_token=reader.lease_token,
        dataset_uuid=chain.datasets["first"],
    )
    found = await list_files(control.pool, request, reads)
    assert [(item.commit, item.location) for item in found.partitions] == [(1, str(folder_of(task)))]
    with pytest.raises(Forbidden):
        await list_files(control.pool, msgspec.structs.replace(request, dataset_uuid=chain.org.id), reads)


Spoil = Callable[[Control, Claimed, list[OutputBody]], list[OutputBody]]


def _changed(**values: Any) -> Spoil:
    return lambda _control, _task, outputs: [msgspec.structs.replace(outputs[0], **values)]


def _without_marker(control: Control, task: Claimed, outputs: list[OutputBody]) -> list[OutputBody]:
    control.objects.delete([marker_in(folder_of(task))])
    return outputs


def _without_file(control: Control, task: Claimed, outputs: list[OutputBody]) -> list[OutputBody]:
    control.objects.delete([folder_of(task).object("first_0_99.parquet")])
    return outputs


def _shortened(control: Control, task: Claimed, outputs: list[OutputBody]) -> list[OutputBody]:
    control.objects.put(folder_of(task).object("first_0_99.parquet"), b"ro", replace=True)
    return outputs


def _of_another(control: Control, task: Claimed, outputs: list[OutputBody]) -> list[OutputBody]:
    marker = msgspec.json.decode(control.objects.get(marker_in(folder_of(task))))
    control.objects.put(marker_in(folder_of(task)), msgspec.json.encode(marker | {"attempt": 2}), replace=True)
    return outputs


def _unreadable(control: Control, task: Claimed, outputs: list[OutputBody]) -> list[OutputBody]:
    control.objects.put(marker_in(folder_of(task)), b"{", replace=True)
    return outputs


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (_changed(location="s3://trace/somewhere/else/"), Forbidden),
        (_changed(row_count=7), Conflict),
        (_changed(bytes=7), Conflict),
        (_changed(files=[{"name": "first_0_99.parquet", "rows": 1, "bytes": 13, "sha256": "x"}]), Conflict),
        (_changed(files=[{"name": "other.parquet"}]), InvalidRequest),
        (_without_marker, Conflict),
        (_without_file, Conflict),
        (_shortened, Conflict),
        (_of_another, Conflict),
        (_unreadable, InvalidRequest),
    ],
)
async def test_files_that_are_not_as_the_marker_says_are_never_committed(
    control: Control, spoil: Spoil, error: type[Exception]
) -> None:
    chain = await deploy_chain(control)
    task, claims = await begun(control, chain)
    outputs = spoil(control, task, staged(control.objects, task, (0, 99)))
    with pytest.raises(error):
        await finish(control, task, claims, outputs)
    assert await current_partitions(control) == []
    assert await control.pool.fetchval("SELECT count(*) FROM commits") == 0


async def test_a_file_counts_once_and_in_one_partition(control: Control) -> None:
    chain = await deploy_chain(control)
    task, claims = await begun(control, chain)
    first, other = staged(control.objects, task, (0, 99), (100, 199))
    twice = msgspec.structs.replace(
        first, files=[*first.files, *first.files], row_count=200, bytes=2 * (first.bytes or 0)
    )
    shared = msgspec.structs.replace(other, files=first.files, row_count=100, bytes=first.bytes)
    for outputs, where in (([twice, other], "/outputs/0/files/1"), ([first, shared], "/outputs/1/files/0")):
        with pytest.raises(Conflict, match="more than once") as refused:
            await finish(control, task, claims, outputs)
        assert refused.value.where == where
    assert await current_partitions(control) == []
    await finish(control, task, claims, [first, other])


@pytest.mark.parametrize("spans", [((0, 99), (50, 149)), ((50, 149), (200, 299), (0, 60))])
async def test_partitions_of_one_completion_that_cross_are_refused(
    control: Control, spans: tuple[tuple[int, int], ...]
) -> None:
    chain = await deploy_chain(control)
    task, claims = await begun(control, chain)
    outputs = staged(control.objects, task, *spans)
    with pytest.raises(InvalidRequest, match="two partitions of one completion"):
        await finish(control, task, claims, outputs)
    assert await current_partitions(control) == []


SCOPES: list[dict[str, Any]] = [{"start": 100, "end": 199}, {"partition_key": "all"}, {"cursor": 7}, {}]


async def test_an_output_of_a_dataset_of_files_that_names_no_place_for_them_is_refused(control: Control) -> None:
    chain = await deploy_chain(control)
    task, claims = await begun(control, chain)
    good = staged(control.objects, task, (0, 99))
    named: dict[str, Any] = {"dataset_uuid": chain.datasets["first"], "dataset_version": chain.versions["first"]}
    for scope, location in product(SCOPES, [None, "", "anything", "postgres_table:buffered.x"]):
        bare = OutputBody(**named, **scope, location=location, row_count=100)
        with pytest.raises((InvalidRequest, Forbidden)) as refused:
            await finish(control, task, claims, [*good, bare])
        assert refused.value.where == "/outputs/1/location"
        assert refused.value.hint is not None
    assert await current_partitions(control) == []
    await finish(control, task, claims, good)


async def test_an_output_of_a_dataset_without_files_needs_no_place_and_may_not_name_one(control: Control) -> None:
    chain = await deploy_chain(control)
    table = "UPDATE dataset_versions SET storage_location = 'postgres_table:dataset_x' WHERE id = $1"
    await control.pool.execute(table, chain.versions["first"])
    output = OutputBody(
        dataset_uuid=chain.datasets["first"], dataset_version=chain.versions["first"], start=0, end=99, row_count=100
    )
    task, claims = await begun(control, chain)
    for location in ("anything", "s3://trace/somewhere/else/"):
        with pytest.raises(Forbidden):
            await finish(control, task, claims, [msgspec.structs.replace(output, location=location)])
    await finish(control, task, claims, [output])
    assert await current_partitions(control) == [("0-99", 1)]


async def test_a_changed_schema_is_refused_with_both_schemas(control: Control) -> None:
    chain = await deploy_chain(control)
    task, claims = await begun(control, chain)
    await finish(control, task, claims, staged(control.objects, task, (0, 99)))
    task, claims = await begun(control, chain)
    wider = [*COLUMNS, ColumnEntry(name="hash", type="binary")]
    with pytest.raises(Conflict, match=r"\(block_number int64\).*\(block_number int64, hash binary\)"):
        await finish(control, task, claims, staged(control.objects, task, (100, 199), columns=wider))
    assert await current_partitions(control) == [("0-99", 1)]


async def test_a_partition_is_replaced_whole_or_not_at_all(control: Control) -> None:
    chain = await deploy_chain(control)
    task, claims = await begun(control, chain)
    await finish(control, task, claims, staged(control.objects, task, (0, 99), (100, 199)))
    task, claims = await begun(control, chain)
    with pytest.raises(Conflict, match="0-49 would be lost"):
        await finish(control, task, claims, staged(control.objects, task, (50, 99)))
    task, claims = await begun(control, chain)
    await finish(control, task, claims, staged(control.objects, task, (0, 49), (50, 99)))
    assert await current_partitions(control) == [("0-49", 2), ("50-99", 2), ("100-199", 1)]


@pytest.mark.parametrize(("first", "second"), [((0, 99), "all"), ("all", (0, 99)), ("eu", (0, 99)), ((0, 99), "eu")])
async def test_a_generation_is_partitioned_by_ranges_or_by_labels_and_never_both(
    control: Control, first: Partition, second: Partition
) -> None:
    chain = await deploy_chain(control)
    task, claims = await begun(control, chain)
    both = staged(control.objects, task, first, second)
    with pytest.raises(Incompatible, match="ranges"):
        await finish(control, task, claims, both)
    await finish(control, task, claims, both[:1])
    there = await current_partitions(control)
    task, claims = await begun(control, chain)
    with pytest.raises(Incompatible, match=there[0][0]) as refused:
        await finish(control, task, claims, staged(control.objects, task, second))
    assert refused.value.where == "/outputs"
    assert "trigger: false" in (refused.value.hint or "")
    assert await current_partitions(control) == there
    task, claims = await begun(control, chain)
    more: Partition = "us" if isinstance(first, str) else (100, 199)
    await finish(control, task, claims, staged(control.objects, task, first, more))
    assert len(await current_partitions(control)) == 2


async def test_an_attempt_claimed_earlier_never_replaces_what_a_later_one_committed(control: Control) -> None:
    chain = await deploy_chain(control)
    early, early_claims = await begun(control, chain)
    late, late_claims = await begun(control, chain)
    await finish(control, late, late_claims, staged(control.objects, late, (0, 99)))
    await finish(control, early, early_claims, staged(control.objects, early, (0, 99), (100, 199)))
    assert await current_partitions(control) == [("0-99", 1), ("100-199", 2)]
    statuses = await control.pool.fetch("SELECT DISTINCT status::text FROM tasks")
    assert [row["status"] for row in statuses] == ["Completed"]


async def test_an_outdated_output_that_is_partly_new_is_refused_and_can_be_retried(control: Control) -> None:
    chain = await deploy_chain(control)
    early, early_claims = await begun(control, chain)
    late, late_claims = await begun(control, chain)
    await finish(control, late, late_claims, staged(control.objects, late, (0, 49)))
    with pytest.raises(Conflict, match="a later attempt wrote it"):
        await finish(control, early, early_claims, staged(control.objects, early, (0, 99)))
    assert await current_partitions(control) == [("0-49", 1)]


async def test_only_files_that_no_commit_references_are_deleted(control: Control) -> None:
    chain = await deploy_chain(control)
    winner, claims = await begun(control, chain)
    outputs = staged(control.objects, winner, (0, 99))
    control.objects.put(folder_of(winner).object("first_0_99_again_1.parquet"), b"Spark ran it twice")
    await finish(control, winner, claims, outputs)
    loser, theirs = await begun(control, chain)
    staged(control.objects, loser, (100, 199))
    failure = completion(loser, status="Failed", error_message="no", retryable=False)
    await control.completer()(failure, theirs)
    running, now = await begun(control, chain)
    staged(control.objects, running, (200, 299))
    for claim in (claims, theirs, now):
        (place,) = (place for place in claim.s3.write if "/scratch/" in place)
        control.objects.put(Folder.parse(place).object("notes"), str(claim.task_id).encode())
    assert await DeleteOrphanFiles(control.pool, control.objects, control.places.scratch_bucket).once() == 0, (
        "it is too early"
    )
    await control.pool.execute("UPDATE task_attempts SET ended_at = ended_at - interval '2 hours'")
    assert await DeleteOrphanFiles(control.pool, control.objects, control.places.scratch_bucket).once() == 2
    assert await DeleteOrphanFiles(control.pool, control.objects, control.places.scratch_bucket).once() == 0, (
        "the next one still runs"
    )
    left = {stored.name.name for stored in control.objects.objects(Folder.parse("s3://trace/datasets/"))}
    assert left == {"first_0_99.parquet", "first_200_299.parquet", "_SUCCESS"}
    (scratch,) = control.objects.objects(Folder.parse("s3://trace-scratch/scratch/"))
    assert control.objects.get(scratch.name) == str(now.task_id).encode(), "it may still be needed"


WAITS_FOR_A_LOCK = """
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
"""


@dataclass(frozen=True)
class Held(DiskObjects):
    """A store that waits before it removes anything."""

    called: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)

    def delete(self, names: Sequence[ObjectName]) -> None:
        self.called.set()
        assert self.go_on.wait(SECONDS)
        super().delete(names)


async def test_a_late_reply_does_not_count_while_its_files_are_being_removed(control: Control, tmp_path: Path) -> None:
    chain, objects = await deploy_chain(control), Held(tmp_path / "objects")
    task, claims = await begun(control, chain)
    outputs = staged(control.objects, task, (0, 99))
    await control.pool.execute("UPDATE tasks SET lease_expires_at = now() - interval '1 s'")
    assert await control.expire_leases().once() == 1
    await control.pool.execute("UPDATE task_attempts SET ended_at = ended_at - interval '2 hours'")
    sweep = asyncio.create_task(DeleteOrphanFiles(control.pool, objects, control.places.scratch_bucket).once())
    await asyncio.to_thread(objects.called.wait, 30)
    late = asyncio.create_task(finish(control, task, claims, outputs))

    async def reached() -> bool:
        return bool(late.done() or await control.pool.fetchval(WAITS_FOR_A_LOCK))

    await until(reached, "the completion waits for a lock")
    assert not late.done(), "it waits until the files are gone"
    objects.go_on.set()
    assert await sweep == 1
    with pytest.raises(LeaseLost, match="deleted"):
        await late
    assert await current_partitions(control) == []


async def test_a_late_reply_counts_when_only_earlier_attempts_were_swept(control: Control) -> None:
    chain = await deploy_chain(control)
    early, theirs = await begun(control, chain)
    await control.completer()(completion(early, status="Failed", error_message="no", retryable=False), theirs)
    await control.pool.execute("UPDATE task_attempts SET ended_at = ended_at - interval '2 hours'")
    task, claims = await begun(control, chain)
    outputs = staged(control.objects, task, (0, 99))
    await control.pool.execute("UPDATE tasks SET lease_expires_at = now() - interval '1 s' WHERE status = 'Running'")
    assert await control.expire_leases().once() == 1
    assert await DeleteOrphanFiles(control.pool, control.objects, control.places.scratch_bucket).once() == 1
    await finish(control, task, claims, outputs)
    assert await current_partitions(control) == [("0-99", 1)]
