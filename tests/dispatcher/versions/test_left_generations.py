"""Generations that no active version serves are removed with their files after some days, and never before."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.support.dispatcher.job_chain import a_task, claimed, deploy_chain
from tests.support.dispatcher.staged_files import EIGHT_DAYS_PASS, current_partitions, folder_of, leave, names, written
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.datasets.drop import drop_dataset
from tracelake.dispatcher.datasets.list_ledger import list_ledger
from tracelake.dispatcher.maintenance.remove_left_generations import RemoveLeftGenerations
from tracelake.errors import Conflict
from tracelake.query.verify.chain import check_chain
from tracelake.store.identity import User
from tracelake.wire.user.ledger import LedgerQuery

pytestmark = pytest.mark.anyio

WEEK = timedelta(days=7)


async def left(control: Control) -> int:
    return int(await control.pool.fetchval("SELECT count(*) FROM dataset_versions WHERE left_at IS NOT NULL"))


def remover(control: Control) -> RemoveLeftGenerations:
    return RemoveLeftGenerations(control.pool, control.objects, WEEK)


async def test_a_generation_that_left_long_ago_is_removed_with_its_files_and_its_commits_stay(control: Control) -> None:
    chain = await deploy_chain(control)
    task = await written(control, chain, (0, 99), (100, 199))
    await control.pool.execute(EIGHT_DAYS_PASS)
    assert await remover(control).once() == 0, "it is served"
    await leave(control, chain)
    assert await left(control) == 3
    assert await remover(control).once() == 0, "it is too early"
    await control.pool.execute(EIGHT_DAYS_PASS)
    assert [await remover(control).once(), await remover(control).once()] == [2, 0]
    assert (await current_partitions(control), names(control, folder_of(task))) == ([], set())
    user = User(chain.org.user, chain.org.id, "acme", None, "admin")
    page = await list_ledger(control.pool, user, str(chain.datasets["first"]), LedgerQuery())
    assert [entry.generation_removed_at is not None for entry in page.entries] == [True]
    assert list(check_chain(page, 0)) == [], "the ledger is whole"


async def test_a_version_that_is_activated_again_in_time_keeps_everything(control: Control) -> None:
    chain = await deploy_chain(control)
    task = await written(control, chain, (0, 99))
    version = await leave(control, chain)
    await control.pool.execute(EIGHT_DAYS_PASS)
    await control.pool.execute("INSERT INTO dag_current_versions VALUES ($1, 'chain', $2)", chain.org.id, version)
    assert await left(control) == 0
    assert await remover(control).once() == 0
    assert names(control, folder_of(task)) == {"first_0_99.parquet", "_SUCCESS"}


async def test_a_version_that_is_activated_too_late_builds_anew_and_new_files_stay(control: Control) -> None:
    chain = await deploy_chain(control)
    key = "partition:0-99"
    former = await a_task(control, chain, key=key)
    old = await written(control, chain, (0, 99))
    version = await leave(control, chain)
    await control.pool.execute(EIGHT_DAYS_PASS)
    removing = remover(control)
    assert await removing._remove() == 1
    await control.pool.execute("INSERT INTO dag_current_versions VALUES ($1, 'chain', $2)", chain.org.id, version)
    again = await a_task(control, chain, key=key)
    assert again != former, "the key is free again"
    new = await written(control, chain, (0, 99))
    assert await removing.once() == 1, "the files of before"
    assert names(control, folder_of(old)) == set()
    assert names(control, folder_of(new)) == {"first_0_99.parquet", "_SUCCESS"}
    assert await current_partitions(control) == [("0-99", 2)], "a commit number is never used twice"


async def test_what_a_running_task_reads_is_not_removed(control: Control) -> None:
    chain = await deploy_chain(control)
    await written(control, chain, (0, 99))
    await claimed(control, await a_task(control, chain, "second"))
    await leave(control, chain)
    await control.pool.execute(EIGHT_DAYS_PASS)
    running = "UPDATE tasks SET status = 'Running', completed_at = NULL, cancel_reason = NULL,"
    await control.pool.execute(f"{running} lease_expires_at = now() WHERE status = 'Canceled'")
    assert await remover(control).once() == 0


async def test_zero_days_keeps_every_generation(control: Control) -> None:
    chain = await deploy_chain(control)
    await written(control, chain, (0, 99))
    await leave(control, chain)
    await control.pool.execute(EIGHT_DAYS_PASS)
    assert await RemoveLeftGenerations(control.pool, control.objects, timedelta()).once() == 0
    assert await current_partitions(control) == [("0-99", 1)]


async def test_a_dropped_dataset_is_removed_at_once_also_where_generations_are_kept_for_ever(control: Control) -> None:
    chain = await deploy_chain(control)
    task = await written(control, chain, (0, 99))
    user, dataset = User(chain.org.user, chain.org.id, "acme", None, "admin"), str(chain.datasets["first"])
    with pytest.raises(Conflict, match="the active version of DAG chain produces it") as refused:
        await drop_dataset(control.pool, user, dataset)
    assert "`trace dag deactivate chain`" in str(refused.value.hint)
    keeping = RemoveLeftGenerations(control.pool, control.objects, timedelta())
    assert await keeping.once() == 0
    version = await leave(control, chain)
    assert (await drop_dataset(control.pool, user, dataset)).generations == 1
    assert [await keeping.once(), await keeping.once()] == [2, 0]
    assert (await current_partitions(control), names(control, folder_of(task))) == ([], set())
    assert (await drop_dataset(control.pool, user, dataset)).generations == 0, "again is nothing new"
    await control.pool.execute("INSERT INTO dag_current_versions VALUES ($1, 'chain', $2)", chain.org.id, version)
    new = await written(control, chain, (0, 99))
    assert await keeping.once() == 0
    assert names(control, folder_of(new)) == {"first_0_99.parquet", "_SUCCESS"}


async def test_a_dataset_with_rows_in_a_table_is_not_dropped(control: Control) -> None:
    chain = await deploy_chain(control)
    user, dataset = User(chain.org.user, chain.org.id, "acme", None, "admin"), str(chain.datasets["first"])
    await leave(control, chain)
    await control.pool.execute(
        "UPDATE dataset_versions SET storage_location = 'postgres_table:hot.x' WHERE dataset_uuid = $1",
        chain.datasets["first"],
    )
    with pytest.raises(Conflict, match="its rows are in a Postgres table"):
        await drop_dataset(control.pool, user, dataset)
