"""After a restore nothing of the lost time is accepted, and no number of it is issued a second time."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import asyncpg
import msgspec
import pytest

from tests.support.dispatcher.job_chain import Chain, a_task, claimed, completion, deploy_chain, drained, expire, status
from tests.support.dispatcher.staged_files import A_MONTH_PASSES, begun, finish, folder_of, names, staged, written
from tracelake.capability.refusal import Reason, TokenRefused
from tracelake.capability.verifier import Verifier
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.datasets.list_ledger import list_ledger
from tracelake.dispatcher.maintenance.delete_orphan_files import DeleteOrphanFiles
from tracelake.dispatcher.maintenance.delete_replaced_files import DeleteReplacedFiles
from tracelake.dispatcher.tasks.show import show_task
from tracelake.domain.flow.pressure import Priority
from tracelake.domain.flow.tiers import queue_of_tier
from tracelake.errors import LeaseLost
from tracelake.query.verify.chain import check_chain
from tracelake.store.identity import User
from tracelake.store.queries import queries
from tracelake.store.restore import start_epoch
from tracelake.store.signing_keys import current_epoch, maintain_keys, published
from tracelake.wire.user.ledger import LedgerPage, LedgerQuery

pytestmark = pytest.mark.anyio

FAILS = {"status": "Failed", "error_message": "no luck", "error_code": "work_failed"}


async def restored(control: Control, state_db: str, epoch: int = 1) -> Control:
    """The Dispatcher as it starts after its database was loaded from a backup."""
    start_epoch(state_db, epoch, uuid4(), datetime.now(UTC))
    await maintain_keys(control.pool, control.signer, control.tokens)
    return replace(control, epoch=await current_epoch(control.pool))


async def retried(control: Control) -> None:
    await control.expire_leases().once()
    await drained(control)


async def ledger(control: Control, chain: Chain) -> LedgerPage:
    user = User(chain.org.user, chain.org.id, "acme", None, "admin")
    return await list_ledger(control.pool, user, str(chain.datasets["first"]), LedgerQuery())


async def test_an_attempt_that_ran_when_the_backup_was_made_can_report_nothing_and_is_repeated(
    control: Control, state_db: str
) -> None:
    chain = await deploy_chain(control)
    task, claims = await claimed(control, await a_task(control, chain))
    after = await restored(control, state_db)
    with pytest.raises(LeaseLost):
        await after.completer()(completion(task), claims)
    await retried(after)
    again, _ = await claimed(after, task.task.task_id)
    assert again.attempt == 1000
    with pytest.raises(LeaseLost):
        await after.completer()(completion(task), claims)


async def test_an_attempt_that_was_given_up_before_the_backup_can_no_longer_report_late(
    control: Control, state_db: str
) -> None:
    chain = await deploy_chain(control)
    task, claims = await claimed(control, await a_task(control, chain))
    await expire(control, task.task.task_id)
    after = await restored(control, state_db)
    with pytest.raises(LeaseLost):
        await after.completer()(completion(task), claims)


async def test_a_queued_attempt_gets_a_number_that_no_attempt_of_the_lost_time_had(
    control: Control, state_db: str
) -> None:
    chain = await deploy_chain(control)
    task_id = await a_task(control, chain)
    first, _ = await claimed(await restored(control, state_db, 1), task_id)
    await control.pool.execute(
        "UPDATE tasks SET status = 'Queued', lease_token = NULL, worker_id = NULL,"
        " started_at = NULL, last_heartbeat = NULL, lease_expires_at = NULL"
    )  # the older copy
    second, _ = await claimed(await restored(control, state_db, 2), task_id)
    assert (first.attempt, second.attempt) == (1000, 2000)


async def test_numbers_that_a_restore_skips_cost_a_task_none_of_its_attempts(control: Control, state_db: str) -> None:
    chain = await deploy_chain(control)
    task, _ = await claimed(control, await a_task(control, chain))
    after = await restored(control, state_db)
    for last in (False, False, True):
        await control.pool.execute("UPDATE tasks SET next_retry_at = now() WHERE next_retry_at IS NOT NULL")
        await retried(after)
        task, claims = await claimed(after, task.task.task_id)
        answer = await after.completer()(completion(task, **FAILS), claims)
        assert (answer.next_retry_at is None) == last
    shown = await show_task(control.pool, chain.org.id, task.task.task_id)
    assert (shown.attempt, shown.skipped_attempts, shown.platform_failures) == (1002, 998, 1)


async def test_a_token_of_the_lost_time_is_refused_although_its_key_is_still_there(
    control: Control, state_db: str
) -> None:
    chain = await deploy_chain(control)
    before = await claimed(control, await a_task(control, chain))
    after = await restored(control, state_db)
    verifier = Verifier(lambda: published(after.pool), after.tokens, clock=after.clock)
    fresh, _ = await claimed(after, await a_task(after, chain))
    assert (await verifier.verify(fresh.capability_token)).epoch == 1
    with pytest.raises(TokenRefused) as refused:
        await verifier.verify(before[0].capability_token)
    assert refused.value.reason is Reason.WRONG_EPOCH


async def test_commits_continue_above_those_of_the_lost_time_and_the_ledger_is_whole(
    control: Control, state_db: str
) -> None:
    chain = await deploy_chain(control)
    for span in ((0, 99), (100, 199)):
        await written(control, chain, span)
    after = await restored(control, state_db)
    task, claims = await begun(after, chain)
    await finish(after, task, claims, staged(after.objects, task, (200, 299)))
    await written(after, chain, (300, 399))
    page = await ledger(control, chain)
    assert [entry.commit for entry in page.entries] == [1, 2, 1_000_000_001, 1_000_000_002]
    assert list(check_chain(page, 0)) == []


@pytest.mark.parametrize("number", [2, 1_000_000_001, 1_000_000_002])
async def test_a_commit_that_is_missing_beside_the_skipped_numbers_is_found(
    control: Control, state_db: str, number: int
) -> None:
    chain = await deploy_chain(control)
    for span in ((0, 99), (100, 199)):
        await written(control, chain, span)
    after = await restored(control, state_db)
    for span in ((200, 299), (300, 399)):
        await written(after, chain, span)
    page = await ledger(control, chain)
    kept = [entry for entry in page.entries if entry.commit != number]
    damages = list(check_chain(msgspec.structs.replace(page, entries=kept), 0))
    assert 1 <= len(damages) <= 2


async def test_the_first_commit_of_a_dataset_after_a_restore_has_a_number_of_the_epoch(
    control: Control, state_db: str
) -> None:
    chain = await deploy_chain(control)
    await written(await restored(control, state_db), chain, (0, 99))
    assert [entry.commit for entry in (await ledger(control, chain)).entries] == [1_000_000_001]


async def test_wake_ups_of_queued_tasks_are_published_again(control: Control, state_db: str) -> None:
    chain = await deploy_chain(control)
    await a_task(control, chain)
    after = await restored(control, state_db)
    await drained(after)
    depth = await control.queue.depth(queue_of_tier(control.runtimes["ecs_platform"].queue or "", Priority.NORMAL))
    assert depth.ready == 1


async def test_no_file_is_deleted_while_a_backup_holds_the_files(control: Control, state_db: str) -> None:
    chain = await deploy_chain(control)
    former = await written(control, chain, (0, 99))
    await written(control, chain, (0, 99))
    await control.pool.execute(A_MONTH_PASSES)
    replaced = DeleteReplacedFiles(control.pool, control.objects, timedelta(days=30))
    orphans = DeleteOrphanFiles(control.pool, control.objects, control.places.scratch_bucket, timedelta(0))
    backup = await asyncpg.connect(state_db)
    assert await backup.fetchval(queries("files_lock")["hold"])
    assert (await replaced.once(), await orphans.once()) == (0, 0)
    assert names(control, folder_of(former)) == {"first_0_99.parquet", "_SUCCESS"}
    await backup.close()
    assert await replaced.once() == 1
    assert names(control, folder_of(former)) == set()


async def test_a_backup_does_not_begin_while_a_deletion_is_in_progress(control: Control, state_db: str) -> None:
    backup = await asyncpg.connect(state_db)
    async with control.pool.acquire() as deletes, deletes.transaction():
        assert await deletes.fetchval(queries("files_lock")["share"])
        assert not await backup.fetchval(queries("files_lock")["hold"])
    assert await backup.fetchval(queries("files_lock")["hold"])
    await backup.close()


async def test_a_source_that_ran_is_left_to_the_loop_that_starts_sources_again(control: Control, state_db: str) -> None:
    chain = await deploy_chain(control)
    await control.pool.execute("UPDATE jobs SET max_platform_failures = 0")  # as of a source that is always on
    task, _ = await claimed(control, await a_task(control, chain))
    after = await restored(control, state_db)
    await retried(after)
    assert await status(control, task.task.task_id) == "Failed"
