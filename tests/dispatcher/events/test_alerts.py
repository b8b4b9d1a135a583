"""A claim returns the alerts that its task needs: the enabled ones of its own organisation, by operator."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from tests.support.dispatcher.alerts import DAG, a_watch
from tests.support.dispatcher.control import PULL, Org, control_for, deployed_and_active, run_here
from tests.support.dispatcher.job_chain import claimed
from tests.support.operators import registered
from tests.support.verbs import deploy_dag, trigger
from tracelake.dispatcher.alerts.edit import delete_alert, update_alert
from tracelake.dispatcher.alerts.for_delivery import alert_targets
from tracelake.dispatcher.control import Control
from tracelake.errors import InvalidDag
from tracelake.wire.task.lifecycle import TaskPayload
from tracelake.wire.user.alerts import AlertChange, TargetRequest, TargetsRequest

pytestmark = pytest.mark.anyio


async def a_task(control: Control, org: Org, job: str) -> TaskPayload:
    await trigger(control, org.id, "watch", "ask", cursor=uuid4().int >> 70, request_id=uuid4())
    await run_here(control)
    find = (
        "SELECT t.id FROM tasks t JOIN jobs j ON j.id = t.job_id"
        " WHERE j.name = $1 AND t.org_id = $2 AND t.status = 'Queued' ORDER BY t.id LIMIT 1"
    )
    task: UUID = await control.pool.fetchval(find, job, org.id)
    answer: Any = (await claimed(control, task))[0]
    return TaskPayload(**{name: getattr(answer.task, name) for name in TaskPayload.__struct_fields__})


async def test_an_evaluator_gets_the_enabled_alerts_it_names_and_no_channels(
    state_db: str, queue_db: str, tmp_path: Path
) -> None:
    async with control_for(state_db, queue_db, tmp_path) as control:
        with registered(pull=PULL):
            mine, user = await a_watch(control, "acme")
            await a_watch(control, "rival")
            await deployed_and_active(control, mine, DAG)
            task = await a_task(control, mine, "look")
            assert [item.name for item in task.alerts] == ["minnows", "whales"]
            assert {(item.params["of"], item.severity, tuple(item.channels)) for item in task.alerts} == {
                ("acme", "info", ())
            }
            await update_alert(control.pool, user, "minnows", AlertChange(enabled=False))
            assert [item.name for item in (await a_task(control, mine, "look")).alerts] == ["whales"]
            await delete_alert(control.pool, user, "whales")
            assert (await a_task(control, mine, "look")).alerts == []
            with pytest.raises(InvalidDag, match="there is no alert 'whales'"):
                await deploy_dag(control, mine.id, mine.user, DAG + "\n# again\n")


async def test_a_task_that_is_not_about_alerts_pays_nothing_for_them(
    state_db: str, queue_db: str, tmp_path: Path
) -> None:
    async with control_for(state_db, queue_db, tmp_path) as control:
        with registered(pull=PULL):
            org, _ = await a_watch(control, "acme")
            await deployed_and_active(control, org, DAG)
            # A query on them would fail.
            await control.pool.execute("ALTER TABLE alert_definitions RENAME TO gone")
            assert (await a_task(control, org, "plain")).alerts == []
            with pytest.raises(asyncpg.UndefinedTableError, match="alert_definitions"):
                await a_task(control, org, "look")


async def test_the_targets_of_an_alert_are_returned_only_for_its_own_organisation(
    state_db: str, queue_db: str, tmp_path: Path
) -> None:
    async with control_for(state_db, queue_db, tmp_path) as control:
        mine, _ = await a_watch(control, "acme")
        theirs, _ = await a_watch(control, "rival")
        alert = await control.pool.fetchval(
            "SELECT id FROM alert_definitions WHERE org_id = $1 AND name = 'whales'", mine.id
        )

        async def target_urls(org: UUID, channel: str) -> list[str]:
            request = TargetRequest(org_id=org, alert_definition_id=alert, channel=channel)
            return [
                target.url for target in (await alert_targets(control.pool, TargetsRequest(targets=[request]))).targets
            ]

        assert await target_urls(mine.id, "ops") == ["https://acme.example.org/"]
        assert await target_urls(theirs.id, "ops") == []
        assert await target_urls(mine.id, "none") == []
