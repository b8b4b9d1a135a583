"""A deleted DAG has no versions, and its files are removed; what others use is not deleted, and the ledger stays."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest

from tests.support.dispatcher.control import PULL, Org, deployed_and_active
from tests.support.dispatcher.mill import READER
from tests.support.dispatcher.releases import started
from tests.support.dispatcher.run_tasks import settle
from tests.support.verbs import activate_dag, deploy_dag, trigger
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.dags.deactivate import deactivate_dag
from tracelake.dispatcher.dags.delete import delete_dag
from tracelake.dispatcher.dags.show import list_dags, show_dag
from tracelake.dispatcher.datasets.list_ledger import list_ledger
from tracelake.dispatcher.maintenance.remove_left_generations import RemoveLeftGenerations
from tracelake.dispatcher.releases.abandon import abandon_release
from tracelake.errors import Conflict, NotFound
from tracelake.query.verify.chain import check_chain
from tracelake.wire.user.ledger import LedgerQuery

pytestmark = pytest.mark.anyio

OPERATORS = {"pull": PULL}

DAG = """
name: mill
defaults: {runtime: ecs_platform}
jobs:
  - {name: ask, operator: pull, source: {kind: manual}}
  - {name: grind, operator: pull, inputs: [{from: {job: ask}}]}
  - {name: notify, operator: pull, inputs: [{from: {job: grind}}], outputs: [{dataset: notices}]}
publish:
  flour: {job: grind}
  notices: {storage: postgres, write_mode: buffered, columns: {id: text}, unique_key: [id]}
"""


async def ran(control: Control, org: Org) -> None:
    await trigger(control, org.id, "mill", "ask", start=0, end=9, request_id=uuid4())
    await settle(control)


async def deactivated(control: Control, org: Org, dag: str = "mill") -> None:
    await deactivate_dag(control.pool, control.after_commit, org.id, dag)


async def partitions(control: Control) -> int:
    return int(await control.pool.fetchval("SELECT count(*) FROM partition_versions"))


async def test_its_versions_are_gone_its_files_are_removed_and_its_commits_stay(control: Control, org: Org) -> None:
    done = await deployed_and_active(control, org, DAG)
    await ran(control, org)
    await deactivated(control, org)
    counted = await delete_dag(control.pool, org.as_user, "mill", dry_run=True)
    assert (counted.changed, counted.versions, counted.jobs) == (False, 1, 3)
    assert (counted.generations, counted.partitions) == (1, 1)
    assert (await show_dag(control.pool, org.id, "mill")).versions, "a dry run deletes nothing"
    deleted = await delete_dag(control.pool, org.as_user, "mill")
    assert (deleted.changed, deleted.partitions, deleted.tables) == (True, 1, ["notices"])
    assert (await list_dags(control.pool, org.id)).dags == []
    for refused in (
        show_dag(control.pool, org.id, "mill"),
        activate_dag(control, org.id, "mill", done.dag_version_id),
        deactivate_dag(control.pool, control.after_commit, org.id, "mill"),
    ):
        with pytest.raises(NotFound):
            await refused
    remover = RemoveLeftGenerations(control.pool, control.objects, timedelta())
    while await remover.once():
        pass
    assert await partitions(control) == 0
    dataset = await control.pool.fetchval("SELECT id FROM datasets WHERE producer_job_name = 'grind'")
    page = await list_ledger(control.pool, org.as_user, str(dataset), LedgerQuery())
    assert (len(page.entries), list(check_chain(page, 0))) == (1, [])


async def test_it_is_refused_while_active_and_again_is_nothing_new(control: Control, org: Org) -> None:
    await deployed_and_active(control, org, DAG)
    with pytest.raises(Conflict, match="is active") as refused:
        await delete_dag(control.pool, org.as_user, "mill")
    assert refused.value.hint == "first, `trace dag deactivate mill`"
    with pytest.raises(NotFound):
        await delete_dag(control.pool, org.as_user, "mil")
    await deactivated(control, org)
    assert (await delete_dag(control.pool, org.as_user, "mill")).changed
    again = await delete_dag(control.pool, org.as_user, "mill")
    assert (again.changed, again.versions) == (False, 0)


async def test_it_is_refused_while_a_release_builds_it_or_others_read_it(control: Control, org: Org) -> None:
    release = await started(control, org, DAG)
    with pytest.raises(Conflict, match="being built") as refused:
        await delete_dag(control.pool, org.as_user, "mill")
    assert refused.value.hint == f"first, `trace release abandon {release}`"
    await abandon_release(control.pool, control.after_commit, org.id, release)
    await deployed_and_active(control, org, DAG)
    await deployed_and_active(control, org, READER)
    await control.pool.execute("DELETE FROM dag_current_versions WHERE dag_name = 'mill'")
    with pytest.raises(Conflict, match="read by shop") as refused:
        await delete_dag(control.pool, org.as_user, "mill")
    assert refused.value.hint == "first, `trace dag deactivate shop`"
    await deactivated(control, org, "shop")
    assert (await delete_dag(control.pool, org.as_user, "mill")).changed


async def test_the_same_file_deployed_again_is_a_new_start(control: Control, org: Org) -> None:
    first = await deployed_and_active(control, org, DAG)
    await ran(control, org)
    await deactivated(control, org)
    await delete_dag(control.pool, org.as_user, "mill")
    remover = RemoveLeftGenerations(control.pool, control.objects, timedelta())
    while await remover.once():
        pass
    assert (await deploy_dag(control, org.id, org.user, DAG)).dag_version_id == first.dag_version_id
    await activate_dag(control, org.id, "mill", first.dag_version_id)
    await settle(control)
    assert await partitions(control) == 1, "the trigger is a fact, and is processed again"
