"""EMR Serverless as it runs tasks: what it refuses, what is lost, how a job ends, and what it is given. 20 s."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.aws.emr_server import APPLICATION, EmrServer, emr_settings, running_emr
from tests.support.aws.faulty_aws import Refusal
from tests.support.systems.walk import OnDispatcher, walking
from tests.support.waiting import until
from tracelake.adapters.invoker_emr import EmrJobRunner, JobPlace
from tracelake.capability.claims import decode
from tracelake.capability.jws import parse_token
from tracelake.dispatcher.runtimes.call_functions import invocation
from tracelake.domain.access.object_names import ObjectName
from tracelake.domain.access.session_policy import session_policy
from tracelake.errors import ServiceUnavailable, SettingsError
from tracelake.ports import Invoked
from tracelake.settings import EmrSettings, load_settings
from tracelake.wire.task.lifecycle import Claimed
from tracelake.worker.job_run import JobDocument

pytestmark = pytest.mark.anyio

WAITS, ENDS, FAILS = ["sleep", "600"], ["true"], ["false"]


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")


@dataclass(frozen=True)
class Running:
    system: OnDispatcher
    server: EmrServer
    runner: EmrJobRunner
    claimed: Claimed

    async def invoke(self) -> Invoked:
        return await self.runner.invoke(invocation(self.claimed), org=self.system.walk.org.id, timeout_seconds=601)


@pytest.fixture
async def running(state_db: str, queue_db: str, tmp_path: Path) -> AsyncIterator[Running]:
    async with (
        running_emr(tmp_path / "emr", program=ENDS) as server,
        walking(state_db, queue_db, tmp_path) as walk,
    ):
        system = OnDispatcher(walk)
        await system.trigger("walk", "ask")
        claimed = await system.claim_task("work")
        place = JobPlace("https://task.example:8444", "-----CA-----", "us-east-1", None)
        runner = EmrJobRunner(emr_settings(server), APPLICATION, walk.control.objects, place)
        yield Running(system, server, runner, claimed)
        await runner.close()


async def test_a_job_has_the_session_policy_of_its_token_and_the_place_of_its_task_and_no_token(
    running: Running,
) -> None:
    assert await running.invoke() == Invoked()
    (run,) = running.server.runs.values()
    storage = decode(parse_token(running.claimed.capability_token).payload).grants.storage
    assert run.policy == json.loads(session_policy(storage))
    asked = run.asked
    assert asked["executionTimeoutMinutes"] == 11
    assert running.claimed.capability_token not in json.dumps(asked)
    place, region = asked["jobDriver"]["sparkSubmit"]["entryPointArguments"]
    name = ObjectName.parse(place)
    assert region == "us-east-1"
    assert storage.may_write(name)
    document = JobDocument.parse(running.system.walk.control.objects.get(name))
    assert document.claimed == running.claimed
    assert (document.task_url, document.ca) == ("https://task.example:8444", "-----CA-----")


@pytest.mark.parametrize(
    ("code", "status", "hint", "busy"),
    [
        ("ResourceNotFoundException", 404, "create the application", False),
        ("ConflictException", 409, "wait until the application is started", False),
        ("ValidationException", 400, "correct emr.role_arn", False),
        ("AccessDeniedException", 403, "allow the action emr-serverless:StartJobRun", False),
        ("ExpiredTokenException", 403, "renew the credentials", False),
        ("RequestTimeTooSkewed", 403, "set the clock", False),
        ("ThrottlingException", 429, "raise the quota", True),
        ("ServiceQuotaExceededException", 402, "raise the quota of vCPUs", True),
    ],
)
async def test_what_is_refused_has_not_started_and_says_what_to_do(
    running: Running, code: str, status: int, hint: str, busy: bool
) -> None:
    running.server.refuse(Refusal(code, status))
    ended = await running.invoke()
    assert (ended.started, ended.busy, ended.refused) == (False, busy, False)
    assert APPLICATION in str(ended.error)
    assert hint in str(ended.error)
    assert not running.server.runs


async def test_a_start_whose_answer_is_lost_is_repeated_and_starts_nothing_twice(running: Running) -> None:
    cuts = [True, True, False]
    running.server.cuts = lambda _operation: cuts.pop(0)
    assert await running.invoke() == Invoked()
    assert running.server.calls.count("StartJobRun") == 3
    assert len(running.server.runs) == 1


async def test_a_service_that_keeps_failing_may_have_started_it(running: Running) -> None:
    running.server.refuse(Refusal("InternalServerException", 500))
    ended = await running.invoke()
    assert (ended.started, ended.lost) == (True, True)
    assert running.server.calls == ["StartJobRun"] * 3


async def test_a_driver_that_ends_badly_is_a_failed_attempt(running: Running) -> None:
    running.server.program = FAILS
    ended = await running.invoke()
    assert "FAILED" in str(ended.error)
    assert (ended.started, ended.lost) == (True, False)


async def test_a_job_that_others_have_canceled_or_that_is_gone_is_no_fault_of_the_task(running: Running) -> None:
    running.server.program = WAITS
    watched = asyncio.create_task(running.invoke())
    run = (await until(lambda: list(running.server.runs.values()), "the job runs"))[0]
    run.stated = "CANCELLED"
    assert (await watched).lost
    running.server.refuse(Refusal("ResourceNotFoundException", 404), operation="GetJobRun")
    assert "is gone" in str((await running.invoke()).error)


async def test_states_that_are_not_known_for_a_while_change_nothing(running: Running) -> None:
    running.server.refuse(Refusal("ThrottlingException", 429), operation="GetJobRun", times=2)
    assert await running.invoke() == Invoked()
    assert running.server.calls.count("GetJobRun") >= 3


@pytest.mark.parametrize("left", [False, True], ids=["called off", "left"])
async def test_a_call_that_is_canceled_ends_its_job_unless_its_process_leaves(running: Running, left: bool) -> None:
    running.server.program = WAITS
    watched = asyncio.create_task(running.invoke())
    await until(lambda: "GetJobRun" in running.server.calls, "the job is watched")
    if left:
        running.runner.leave()
    watched.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watched
    (run,) = running.server.runs.values()
    assert run.state == ("RUNNING" if left else "CANCELLED")


async def test_the_application_is_examined_without_starting_anything(running: Running) -> None:
    assert await running.runner.examine() == "emr-8, STARTED"
    running.server.state = "TERMINATED"
    with pytest.raises(ServiceUnavailable, match="TERMINATED"):
        await running.runner.examine()
    for code, status, hint in (
        ("ResourceNotFoundException", 404, "create the application"),
        ("AccessDeniedException", 403, "allow the action emr-serverless:GetApplication"),
    ):
        running.server.refuse(Refusal(code, status), operation="GetApplication")
        with pytest.raises(ServiceUnavailable) as refused:
            await running.runner.examine()
        assert hint in str(refused.value.hint)
    assert not running.server.runs


ROLE = {"TRACE_EMR__ROLE_ARN": "arn:aws:iam::123456789012:role/trace-job"}
S3 = {"TRACE_OBJECTS__BACKEND": "s3"}
APP = {"TRACE_RUNTIMES__EMR_SERVERLESS__APPLICATION": "00a"}
TRUSTED = {"TRACE_RUNTIMES__OWN__INVOKER": "job_run", "TRACE_RUNTIMES__OWN__APPLICATION": "00a"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (APP | S3, "emr.role_arn must be set"),
        (APP | ROLE, "objects.backend: s3"),
        ({"TRACE_RUNTIMES__ECS_UDF__APPLICATION": "00a"}, "belongs to the invoker `job_run`"),
        (APP | ROLE | S3 | TRUSTED, "differ in `untrusted`: each needs an application"),
    ],
)
def test_an_application_without_effect_or_shared_by_two_classes_of_trust_is_refused(
    given: dict[str, str], said: str, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match=said):
        load_settings(given, home=tmp_path)
    other: dict[str, Any] = APP | ROLE | S3 | TRUSTED | {"TRACE_RUNTIMES__OWN__APPLICATION": "00b"}
    assert load_settings(other, home=tmp_path).runtimes["own"].application == "00b"


def test_a_role_must_be_named() -> None:
    place = JobPlace("https://x", None, "us-east-1", None)
    with pytest.raises(SettingsError, match=r"emr\.role_arn"):
        EmrJobRunner(EmrSettings(), APPLICATION, None, place)  # type: ignore[arg-type]
