"""Lambda as invoker: what it refuses, what is lost, organisations as tenants, and what the doctor reads."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest

from tests.support.aws.faulty_aws import Refusal
from tests.support.aws.lambda_server import FUNCTION, LambdaServer, running_lambda
from tests.support.systems.invokers import lambda_settings
from tests.support.udf.bundles import zipped
from tracelake.adapters.invoker_lambda import LambdaInvoker, unqualified
from tracelake.errors import ServiceUnavailable, SettingsError
from tracelake.ports import Invoked
from tracelake.settings import UdfSettings

pytestmark = pytest.mark.anyio

ORG = uuid4()
CODE = b"""
import os, time
ANSWERS = {"returned": {"ending": "returned", "error": None}, "failed": {"ending": "failed", "error": "ValueError: x"}}
def handler(event, context):
    match event["do"]:
        case "raise": raise OSError("the runner's own")
        case "end": os._exit(1)
        case "wait": time.sleep(60)
        case "other": return {"hello": "world"}
        case "tenant": return {"ending": "failed", "error": f"{context.tenant_id} {os.getpid()}"}
    return ANSWERS[event["do"]]
"""


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")


@pytest.fixture
async def server() -> AsyncIterator[LambdaServer]:
    async with running_lambda(zipped(("main.py", CODE)), "main.handler") as made:
        yield made


@pytest.fixture
async def invoker(server: LambdaServer) -> AsyncIterator[LambdaInvoker]:
    made = LambdaInvoker(lambda_settings(server), calls=4)
    yield made
    await made.close()


async def call(invoker: LambdaInvoker, do: str, org: Any = ORG, seconds: float = 60) -> Invoked:
    return await invoker.invoke(json.dumps({"do": do}).encode(), org=org, timeout_seconds=seconds)


REFUSALS = [
    ("ResourceNotFoundException", 404, "create it"),
    ("ResourceConflictException", 409, "wait until it is Active"),
    ("InvalidParameterValueException", 400, "udf.lambda_tenants"),
    ("KMSDisabledException", 502, "enable the key"),
    ("EC2AccessDeniedException", 502, "ec2:CreateNetworkInterface"),
    ("InvalidZipFileException", 502, "trace udf runner-zip"),
    ("ExpiredTokenException", 403, "renew the credentials"),
    ("InvalidSignatureException", 403, "report it"),
]


@pytest.mark.parametrize(("code", "status", "hint"), REFUSALS)
async def test_what_lambda_refuses_has_not_started_and_says_what_to_do(
    server: LambdaServer, invoker: LambdaInvoker, code: str, status: int, hint: str
) -> None:
    server.refuse(Refusal(code, status, "no"))
    ended = await call(invoker, "returned")
    assert (ended.started, ended.busy, ended.lost, ended.refused) == (False, False, False, False)
    assert code in str(ended.error)
    assert hint in str(ended.error)
    assert len(server.calls) == 1


async def test_a_right_that_is_missing_is_named(server: LambdaServer, invoker: LambdaInvoker) -> None:
    message = "User: x is not authorized to perform: lambda:InvokeFunction on resource: y"
    server.refuse(Refusal("AccessDeniedException", 403, message))
    ended = await call(invoker, "returned")
    assert ended.started is False
    assert f"allow the action lambda:InvokeFunction on {FUNCTION}" in str(ended.error)


async def test_a_throttled_call_has_not_started_and_is_not_repeated_here(
    server: LambdaServer, invoker: LambdaInvoker
) -> None:
    server.concurrency = 0
    ended = await call(invoker, "returned")
    assert (ended.started, ended.busy, ended.lost) == (False, True, False)
    assert "ReservedFunctionConcurrentInvocationLimitExceeded" in str(ended.error)
    assert "raise the reserved concurrency" in str(ended.error)
    assert len(server.calls) == 1


@pytest.mark.parametrize("code", ["ServiceException", "InternalFailure"])
async def test_what_may_have_run_is_lost_and_not_called_again(
    server: LambdaServer, invoker: LambdaInvoker, code: str
) -> None:
    server.refuse(Refusal(code, 500))
    ended = await call(invoker, "returned")
    assert (ended.started, ended.lost) == (True, True)
    assert len(server.calls) == 1


async def test_an_answer_that_is_lost_may_have_run(server: LambdaServer, invoker: LambdaInvoker) -> None:
    server.cuts = lambda: True
    ended = await call(invoker, "returned")
    assert (ended.started, ended.lost) == (True, True), ended
    assert [environment.served for environment in server.environments] == [1]


async def test_a_lambda_that_is_not_there_has_started_nothing() -> None:
    away = UdfSettings(invoker="lambda", lambda_function=FUNCTION, lambda_endpoint="http://127.0.0.1:1")
    invoker = LambdaInvoker(away, calls=1)
    ended = await call(invoker, "returned")
    await invoker.close()
    assert (ended.started, ended.busy, ended.lost) == (False, False, False)
    assert "does not answer" in str(ended.error)


@pytest.mark.parametrize(
    ("do", "how", "says"),
    [
        ("returned", (True, False), "None"),
        ("failed", (True, False), "ValueError: x"),
        ("raise", (True, True), "OSError: the runner's own"),
        ("end", (True, False), "Runtime.ExitError"),
        ("other", (False, False), "not the runner that answers"),
    ],
)
async def test_failures_of_code_and_of_the_runner_are_kept_apart(
    server: LambdaServer, invoker: LambdaInvoker, do: str, how: tuple[bool, bool], says: str
) -> None:
    """`how`: started, and lost."""
    ended = await call(invoker, do)
    assert (ended.started, ended.lost) == how, ended
    assert says in str(ended.error)
    assert len(server.calls) == 1


async def test_an_environment_that_lambda_ended_at_its_limit_has_run(
    server: LambdaServer, invoker: LambdaInvoker
) -> None:
    server.timeout_seconds = 1
    ended = await call(invoker, "wait")
    assert (ended.started, ended.lost) == (True, False)
    assert "Sandbox.Timedout" in str(ended.error)


async def test_a_handler_that_cannot_be_loaded_has_not_started(invoker: LambdaInvoker, server: LambdaServer) -> None:
    server.handler = "none.handler"
    ended = await call(invoker, "returned")
    assert (ended.started, ended.lost) == (False, False), ended
    assert "Runtime.ImportModuleError" in str(ended.error)
    assert "runner-zip" in str(ended.error)


async def test_organisations_are_tenants_and_share_no_environment(invoker: LambdaInvoker) -> None:
    other = uuid4()
    ended = [await call(invoker, "tenant", org) for org in (ORG, other, ORG)]
    tenants, processes = zip(*(str(item.error).split() for item in ended), strict=True)
    assert tenants == (str(ORG), str(other), str(ORG))
    assert processes[0] == processes[2] != processes[1]


async def test_without_tenant_isolation_no_tenant_is_sent(server: LambdaServer) -> None:
    server.per_tenant = False
    invoker = LambdaInvoker(lambda_settings(server, lambda_tenants=False), calls=1)
    assert await call(invoker, "returned") == Invoked()
    await invoker.close()
    assert [item.tenant for item in server.calls] == [None]


async def test_what_is_examined_is_the_function_and_nothing_runs(server: LambdaServer, invoker: LambdaInvoker) -> None:
    found = await invoker.examine()
    assert (found.memory_mb, found.seconds) == (1024, 900)
    assert [item.kind for item in server.calls] == ["DryRun"]
    assert server.environments == []


@pytest.mark.parametrize(
    ("operation", "refusal", "hint"),
    [
        ("Invoke", Refusal("AccessDeniedException", 403), "lambda:InvokeFunction on"),
        ("GetFunctionConfiguration", Refusal("AccessDeniedException", 403), "lambda:GetFunctionConfiguration on"),
        ("GetFunctionConcurrency", Refusal("AccessDeniedException", 403), "lambda:GetFunctionConcurrency on"),
        ("GetFunctionConfiguration", Refusal("ResourceNotFoundException", 404), "create it"),
        ("Invoke", Refusal("InvalidParameterValueException", 400), "udf.lambda_tenants"),
    ],
)
async def test_a_function_that_cannot_be_called_is_an_error_with_the_missing_action(
    server: LambdaServer, invoker: LambdaInvoker, operation: str, refusal: Refusal, hint: str
) -> None:
    server.refuse(refusal, operation=operation)
    with pytest.raises(ServiceUnavailable) as refused:
        await invoker.examine()
    assert hint in str(refused.value.hint)
    assert FUNCTION in str(refused.value.as_dict())


async def test_a_function_that_is_disabled_or_not_ready_is_an_error(
    server: LambdaServer, invoker: LambdaInvoker
) -> None:
    server.concurrency = 0
    with pytest.raises(ServiceUnavailable, match="is disabled: its reserved concurrency is 0"):
        await invoker.examine()
    server.state = "Failed"
    with pytest.raises(ServiceUnavailable, match="is Failed"):
        await invoker.examine()


def test_a_function_must_be_named() -> None:
    with pytest.raises(SettingsError, match=r"udf.lambda_function is not set"):
        LambdaInvoker(UdfSettings(invoker="lambda"), calls=1)


@pytest.mark.parametrize(
    ("name", "without"),
    [
        ("runner", "runner"),
        ("runner:live", "runner"),
        ("arn:aws:lambda:eu-central-1:123456789012:function:runner", None),
        ("arn:aws:lambda:eu-central-1:123456789012:function:runner:7", None),
    ],
)
def test_an_alias_is_no_part_of_the_name(name: str, without: str | None) -> None:
    expected = without or "arn:aws:lambda:eu-central-1:123456789012:function:runner"
    assert unqualified(UdfSettings(lambda_function=name).lambda_function or "") == expected
