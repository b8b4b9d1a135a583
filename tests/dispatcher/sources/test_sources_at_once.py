"""Always-on sources while versions come and go, step by step: each kind of race ends with one run, and its state."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.dispatcher.control import PULL, Org, deployed_and_active
from tests.support.dispatcher.sources import (
    DAG,
    OTHER_WORK,
    claim,
    claim_of_job,
    emit,
    end,
    jobs_with_source,
    must_stop,
    settle,
    source,
)
from tests.support.postgres import blocked_by, held
from tests.support.verbs import activate_dag, deploy_dag
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.sources.keep_running import BATCH, KeepSourcesRunning
from tracelake.store.queries import queries
from tracelake.wire.task.lifecycle import Claimed, ClaimRequest

pytestmark = pytest.mark.anyio

OPERATORS = {"pull": PULL}

PUBLISHED = DAG + "publish: {followed: {job: follow}}\n"


async def test_a_version_that_comes_back_in_the_moment_its_source_is_settled_keeps_its_source(
    control: Control, org: Org, state_db: str
) -> None:
    first = await deployed_and_active(control, org, PUBLISHED)
    await settle(control)
    run = await claim(control)
    await deployed_and_active(control, org, OTHER_WORK)
    await end(control, run)  # drained, and not settled yet
    async with held(state_db, control.pool) as holder:
        await holder.connection.execute("SELECT FROM datasets FOR NO KEY UPDATE")
        back = asyncio.create_task(activate_dag(control, org.id, "feed", first.dag_version_id))
        activation = await holder.blocks()  # it has entered its sources, and waits to publish the name
        settling = asyncio.create_task(KeepSourcesRunning(control.pool, control.after_commit).once())
        await blocked_by(control.pool, activation, unless=settling)
    await back
    await settling
    await settle(control)
    assert await jobs_with_source(control) == {first.jobs["follow"]: "Running"}


async def test_a_source_of_the_active_version_whose_row_is_missing_is_entered_and_started(
    control: Control, org: Org
) -> None:
    done = await deployed_and_active(control, org, DAG)
    await control.pool.execute("DELETE FROM sources")
    assert await KeepSourcesRunning(control.pool, control.after_commit).once() == 1
    assert await jobs_with_source(control) == {done.jobs["follow"]: "Pending"}
    await settle(control)
    assert await jobs_with_source(control) == {done.jobs["follow"]: "Running"}


async def test_a_source_that_drains_while_its_version_comes_back_goes_on_from_its_own_last_state(
    control: Control, org: Org
) -> None:
    await deployed_and_active(control, org, DAG)
    await settle(control)
    run = await claim(control)
    await emit(control, run, state={"at": 1})
    await deployed_and_active(control, org, OTHER_WORK)  # inherits 1
    await emit(control, run, state={"at": 2})
    await deployed_and_active(control, org, DAG)
    await end(control, run)
    await settle(control)
    assert (await claim_of_job(control)).task.state == {"at": 2}


async def test_a_run_that_is_started_while_its_version_leaves_is_canceled(
    control: Control, org: Org, state_db: str
) -> None:
    await deployed_and_active(control, org, DAG)
    second = await deploy_dag(control, org.id, org.user, OTHER_WORK)
    async with held(state_db, control.pool) as replica:
        assert await replica.connection.fetchval(queries("sources")["start_sources"], BATCH) == 1
        leaving = asyncio.create_task(activate_dag(control, org.id, "feed", second.dag_version_id))
        await replica.blocks()
    await leaving
    assert await control.pool.fetchval("SELECT status::text FROM tasks") == "Canceled"
    assert await jobs_with_source(control) == {second.jobs["follow"]: "Pending"}


async def test_a_run_that_is_claimed_while_its_version_leaves_is_stopped(
    control: Control, org: Org, state_db: str
) -> None:
    first = await deployed_and_active(control, org, DAG)
    second = await deploy_dag(control, org.id, org.user, OTHER_WORK)
    await settle(control)
    row = await source(control)
    # As if the run had been made by a replica that saw the first version active until now.
    swap = "UPDATE dag_current_versions SET dag_version_id = $1"
    await control.pool.execute(swap, second.dag_version_id)
    async with held(state_db, control.pool) as worker:
        await worker.connection.execute("SELECT FROM tasks WHERE id = $1 FOR NO KEY UPDATE", row["task_id"])
        claiming = asyncio.create_task(control.claimer().claim([ClaimRequest(task_id=row["task_id"], worker_id="w")]))
        claimer = await worker.blocks()
        settling = asyncio.create_task(KeepSourcesRunning(control.pool, control.after_commit).once())
        await blocked_by(control.pool, claimer, unless=settling)
    [run] = await claiming
    await settling
    assert isinstance(run, Claimed)
    assert (await jobs_with_source(control))[first.jobs["follow"]] == "Draining"
    assert await must_stop(control, run)
