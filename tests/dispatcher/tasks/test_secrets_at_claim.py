"""A claim says which secrets a job names: never a value, and no name to code that is not trusted."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from tests.support.dispatcher.job_chain import Chain, a_task, claimed, deploy_chain
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.tasks.fetch import fetch_task
from tracelake.settings import RUNTIMES, RuntimeSettings
from tracelake.wire.task.lifecycle import Claimed, NotClaimed

pytestmark = pytest.mark.anyio


async def a_chain(control: Control, secrets: list[str], operator: str = "python") -> Chain:
    chain = await deploy_chain(control)
    named = "UPDATE jobs SET secrets = $2, operator = $3 WHERE id = $1"
    await control.pool.execute(named, chain.jobs["first"], secrets, operator)
    return chain


async def test_a_claim_and_a_fetch_say_the_names_as_the_dag_writes_them(control: Control) -> None:
    chain = await a_chain(control, ["API_KEY", "other"])
    task = await a_task(control, chain)
    assert (await fetch_task(control.pool, control.jobs, control.payloads(), control.runtimes, task)).secrets == [
        "API_KEY",
        "other",
    ]
    answer, _ = await claimed(control, task)
    heard = msgspec.json.decode(msgspec.json.encode(answer), type=Claimed | NotClaimed)
    assert heard == answer
    assert heard.task.secrets == ["API_KEY", "other"]


async def test_where_there_are_none_a_claim_has_no_such_field_which_older_workers_would_refuse(
    control: Control,
) -> None:
    answer, _ = await claimed(control, await a_task(control, await a_chain(control, [])))
    assert "secrets" not in msgspec.json.decode(msgspec.json.encode(answer))["task"]
    assert not msgspec.json.decode(msgspec.json.encode(answer), type=Claimed | NotClaimed).task.secrets


@pytest.mark.parametrize("operator", ["sql", "noop", "of_another_time"])
async def test_an_operator_that_takes_no_secrets_gets_no_names(control: Control, operator: str) -> None:
    """Its DAG may be of a time when they were not refused, and its worker too, which would not know the field."""
    answer, _ = await claimed(control, await a_task(control, await a_chain(control, ["API_KEY"], operator)))
    assert "API_KEY" not in msgspec.json.encode(answer).decode()


@pytest.mark.parametrize(
    "runtimes",
    [{}, {**RUNTIMES, "ecs_platform": RuntimeSettings(queue="tasks-ecs_platform", untrusted=True)}],
    ids=["gone", "untrusted"],
)
async def test_a_runtime_that_is_no_longer_trusted_gets_no_names(
    control: Control, runtimes: dict[str, RuntimeSettings]
) -> None:
    chain = await a_chain(control, ["API_KEY"])
    answer, _ = await claimed(replace(control, runtimes=runtimes), await a_task(control, chain))
    assert "API_KEY" not in msgspec.json.encode(answer).decode()
