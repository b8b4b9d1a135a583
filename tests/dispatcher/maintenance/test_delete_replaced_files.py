"""Files of replaced partitions are deleted when no task can read them any more, and not before."""

from __future__ import annotations

from datetime import timedelta

import pytest
import structlog

from tests.support.dispatcher.job_chain import Chain, a_task, claimed, deploy_chain
from tests.support.dispatcher.staged_files import A_MONTH_PASSES, finish, folder_of, names, written
from tracelake.capability.claims import Claims
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.datasets.list_task_files import list_files
from tracelake.dispatcher.maintenance.delete_orphan_files import DeleteOrphanFiles
from tracelake.dispatcher.maintenance.delete_replaced_files import DeleteReplacedFiles
from tracelake.domain.access.object_names import Folder
from tracelake.errors import SnapshotTooOld
from tracelake.wire.task.lifecycle import Claimed
from tracelake.wire.task.outputs import FilesAnswer, FilesRequest

pytestmark = pytest.mark.anyio

MONTH = timedelta(days=30)
"""How long replaced files are kept, in these tests."""


async def test_files_of_a_partition_that_was_replaced_long_ago_are_deleted_and_current_ones_stay(
    control: Control,
) -> None:
    chain = await deploy_chain(control)
    former, current = await written(control, chain, (0, 99), (100, 199)), await written(control, chain, (0, 99))
    assert await DeleteReplacedFiles(control.pool, control.objects, MONTH).once() == 0, "it is too early"
    await control.pool.execute(A_MONTH_PASSES)
    assert await DeleteReplacedFiles(control.pool, control.objects, MONTH).once() == 1
    assert await DeleteReplacedFiles(control.pool, control.objects, MONTH).once() == 0, "each goes once"
    assert names(control, folder_of(former)) == {"first_100_199.parquet", "_SUCCESS"}, "half of it is current"
    assert names(control, folder_of(current)) == {"first_0_99.parquet", "_SUCCESS"}
    last = await written(control, chain, (100, 199))
    await control.pool.execute(A_MONTH_PASSES)
    assert await DeleteReplacedFiles(control.pool, control.objects, MONTH).once() == 1
    assert names(control, folder_of(former)) == set(), "with the last of its files the marker goes"
    await DeleteOrphanFiles(control.pool, control.objects, control.places.scratch_bucket, timedelta(0)).once()
    assert names(control, folder_of(current)) == {"first_0_99.parquet", "_SUCCESS"}
    assert names(control, folder_of(last)) == {"first_100_199.parquet", "_SUCCESS"}


async def test_what_a_running_task_has_pinned_stays_however_old_it_is(control: Control) -> None:
    chain = await deploy_chain(control)
    former = await written(control, chain, (0, 99))
    reader, reads = await claimed(control, await a_task(control, chain, "second"))
    await written(control, chain, (0, 99))
    await control.pool.execute(A_MONTH_PASSES)
    assert await DeleteReplacedFiles(control.pool, control.objects, MONTH).once() == 0
    (seen,) = (await listed(control, chain, reader, reads)).partitions
    assert names(control, Folder.parse(seen.location)) >= {"first_0_99.parquet"}
    await finish(control, reader, reads, [])
    assert await DeleteReplacedFiles(control.pool, control.objects, MONTH).once() == 1
    assert names(control, folder_of(former)) == set()


async def test_a_reader_whose_files_are_deleted_is_refused_and_never_reads_a_gap(control: Control) -> None:
    chain = await deploy_chain(control)
    await written(control, chain, (0, 99))
    reader, reads = await claimed(control, await a_task(control, chain, "second"))
    await written(control, chain, (0, 99))
    await control.pool.execute("UPDATE partition_versions SET files_removed_at = now() WHERE valid_to IS NOT NULL")
    with pytest.raises(SnapshotTooOld, match="commit 1 needs partition 0-99"):
        await listed(control, chain, reader, reads)


@pytest.mark.parametrize(
    ("location", "files"),
    [("", []), ("anything", [{"name": "x"}]), ("s3://trace/datasets/x/", [{"name": "../first_0_99.parquet"}])],
)
async def test_a_partition_whose_place_cannot_be_read_is_left_out_and_the_others_go(
    control: Control, location: str, files: list[dict[str, str]]
) -> None:
    chain = await deploy_chain(control)
    await written(control, chain, (100, 199))
    former = await written(control, chain, (0, 99))
    spoil = "UPDATE partition_versions SET location = $1, files = $2 WHERE partition_key = '100-199'"
    await control.pool.execute("ALTER TABLE partition_versions DISABLE TRIGGER USER")
    await control.pool.execute(spoil, location, files)
    await control.pool.execute("ALTER TABLE partition_versions ENABLE TRIGGER USER")
    await written(control, chain, (0, 99), (100, 199))
    await control.pool.execute(A_MONTH_PASSES)
    with structlog.testing.capture_logs() as said:
        assert await DeleteReplacedFiles(control.pool, control.objects, MONTH).once() == 2
        assert await DeleteReplacedFiles(control.pool, control.objects, MONTH).once() == 0, "nor does it come again"
    assert names(control, folder_of(former)) == set()
    assert [item["partition"] for item in said] == (["100-199"] if location else []), (
        "where there is none, nothing lies"
    )


async def listed(control: Control, chain: Chain, reader: Claimed, reads: Claims) -> FilesAnswer:
    request = FilesRequest(
        task_id=reader.task.task_id,
        attempt=reader.attempt,
        lease_token=reader.lease_token,
        dataset_uuid=chain.datasets["first"],
    )
    return await list_files(control.pool, request, reads)
