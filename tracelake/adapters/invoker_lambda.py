"""Functions by AWS Lambda's Invoke, on the platform's one runner function (`tracelake/udf/lambda_function.py`)."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final
from uuid import UUID

from tracelake.adapters.aws.faults import THROTTLED, Fault, fault_of
from tracelake.adapters.aws.service import ANSWER_SECONDS, AwsFault, AwsRefusal, AwsService
from tracelake.domain.function_answer import Ending, answer_from
from tracelake.errors import ServiceUnavailable, SettingsError
from tracelake.ports import Invoked, Places, RunnerFunction
from tracelake.settings import UdfSettings

PAYLOAD_BYTES: Final = 6 * 1024 * 1024
"""The most that Lambda takes in a call that waits for its answer."""
LAMBDA_SECONDS: Final = 900.0
"""Lambda runs nothing longer."""
ERROR_LENGTH: Final = 4_000
MISSING: Final = "ResourceNotFoundException"
NOBODY: Final = UUID(int=0)
"""The tenant of a call that runs nothing."""
TENANT: Final = "X-Amz-Tenant-Id"
TOO_LARGE: Final = frozenset({"RequestTooLargeException", "SerializedRequestEntityTooLargeException"})
TIMED_OUT: Final = "Sandbox.Timedout"
SPENT: Final = frozenset({"Runtime.ExitError", "Runtime.OutOfMemory", TIMED_OUT})
"""Errors by which an environment ends that code has used up. All other errors of Lambda are the runner's."""
FIXES: Final = {
    MISSING: "create it (docs/how-to/run_functions_on_lambda.md), or correct udf.lambda_function or udf.lambda_region",
    "ResourceConflictException": "wait until it is Active and its update is Successful, or create it again",
    "ResourceNotReadyException": "wait until its network is ready: it has been idle for weeks",
    "InvalidZipFileException": "upload the zip that `trace udf runner-zip` writes",
    "InvalidRuntimeException": "set the runtime that `trace udf runner-zip` names",
    "InvalidSubnetIDException": "correct the subnets of the function",
    "InvalidSecurityGroupIDException": "correct the security groups of the function",
    "SubnetIPAddressLimitReachedException": "give the function larger subnets",
    "ENILimitReachedException": "raise the quota of network interfaces",
    "EC2AccessDeniedException": "allow ec2:CreateNetworkInterface, ec2:DescribeNetworkInterfaces and"
    " ec2:DeleteNetworkInterface in the function's own role",
    "EC2ThrottledException": "wait: EC2 throttles Lambda",
    "EC2UnexpectedException": "wait: EC2 has failed",
    "KMSDisabledException": "enable the key that encrypts the environment of the function",
    "KMSAccessDeniedException": "allow kms:Decrypt on the key of the function's environment in its own role",
    "KMSInvalidStateException": "restore the key that encrypts the environment of the function",
    "KMSNotFoundException": "give the function another key for its environment",
    "InvalidParameterValueException": "the function and udf.lambda_tenants must agree: a function with tenant isolation"
    " PER_TENANT, or the setting off",
    "InvalidRequestContentException": "this is not expected: report it",
}
"""What to do about refusals of Lambda itself. None of them has run anything."""


class LambdaInvoker:
    """Belongs to one event loop."""

    def __init__(self, settings: UdfSettings, *, calls: int) -> None:
        """`calls`: how many run at once, each on a connection of its own. Opens nothing yet."""
        if settings.lambda_function is None:
            hint = "the name or ARN of the runner function, such as trace-runner"
            raise SettingsError("udf.lambda_function is not set", where="udf.lambda_function", hint=hint)
        self._function, self._tenants = settings.lambda_function, settings.lambda_tenants
        self._aws = AwsService(
            "lambda",
            settings.lambda_region,
            settings.lambda_endpoint,
            unavailable=ServiceUnavailable,
            longest_wait=LAMBDA_SECONDS,
            connections=calls,
            on_client=_send_tenants,
        )

    async def invoke(self, payload: bytes, *, org: UUID, timeout_seconds: float) -> Invoked:
        if len(payload) > PAYLOAD_BYTES:
            return _too_large(len(payload))
        try:
            answer = await self._aws.call_once(
                "invoke",
                waits=min(timeout_seconds, LAMBDA_SECONDS),
                FunctionName=self._function,
                InvocationType="RequestResponse",
                Payload=payload,
                **self._tenant(org),
            )
        except AwsFault as wrong:
            return self._refused(wrong.fault, len(payload))
        return await self._ended(answer)

    async def places(self) -> Places | None:
        """Lambda says it by throttling."""
        return None

    async def examine(self) -> RunnerFunction:
        """Runs nothing. ServiceUnavailable if it cannot be called, with what to do."""
        found = await self._read("get_function_configuration", self._function)
        if (state := found.get("State", "Active")) not in ("Active", "Inactive"):
            raise self._unavailable(f"is {state}: {found.get('StateReason', '')}", FIXES["ResourceConflictException"])
        limit = await self._read("get_function_concurrency", unqualified(self._function))
        if limit.get("ReservedConcurrentExecutions") == 0:
            raise self._unavailable("is disabled: its reserved concurrency is 0", "raise or remove it")
        await self._try_call()
        at_once = await self._at_once(limit.get("ReservedConcurrentExecutions"))
        return RunnerFunction(
            found.get("Runtime", "an image"), int(found["MemorySize"]), int(found["Timeout"]), at_once
        )

    async def close(self) -> None:
        await self._aws.close()

    def _tenant(self, org: UUID) -> dict[str, str]:
        return {"TenantId": str(org)} if self._tenants else {}

    def _refused(self, fault: Fault, size: int) -> Invoked:
        if fault.code in TOO_LARGE:
            return _too_large(size)
        hint = FIXES.get(fault.code, fault.hint)
        if fault.code in THROTTLED:
            hint = "raise the reserved concurrency of the function, or the quota of the account"
        error = f"{self._where}: {fault.message} ({hint})"[:ERROR_LENGTH]
        if fault.may_be_done and fault.code not in FIXES:
            return Invoked(error, lost=True)
        return Invoked(error, started=False, busy=fault.code in THROTTLED)

    async def _ended(self, answer: dict[str, Any]) -> Invoked:
        try:
            async with asyncio.timeout(ANSWER_SECONDS), answer["Payload"] as stream:
                body = _json(await stream.read())
        except Exception as wrong:  # noqa: BLE001 - what is not of AWS is raised again
            return Invoked(fault_of(wrong, "lambda", "invoke", {}).message, lost=True)
        return self._of_lambda(body) if "FunctionError" in answer else self._of_runner(body)

    def _of_lambda(self, error: Any) -> Invoked:
        """An error of the runner or of its environment."""
        found = error if isinstance(error, dict) else {}
        kind = str(found.get("errorType") or "Error")
        text = f"{kind}: {found.get('errorMessage', error)}"[:ERROR_LENGTH]
        if kind in SPENT:
            return Invoked(text)
        if kind.startswith("Runtime."):  # it could not be loaded
            hint = FIXES["InvalidZipFileException"]
            return Invoked(f"{self._where}: the runner does not start: {text} ({hint})", started=False)
        return Invoked(f"{self._where}: the runner has failed: {text}", lost=True)

    def _of_runner(self, document: Any) -> Invoked:
        answer = answer_from(document)
        if answer is None:
            hint = FIXES["InvalidZipFileException"]
            return Invoked(f"{self._where}: it is not the runner that answers ({hint})", started=False)
        if answer.ending is Ending.RETURNED:
            return Invoked()
        if answer.ending is Ending.FAILED:
            return Invoked(answer.error or "the function failed")
        return Invoked(answer.error, started=False, busy=answer.ending is Ending.OTHER_ENVIRONMENT)

    async def _read(self, operation: str, function: str) -> dict[str, Any]:
        try:
            return await self._aws.call(operation, handled=frozenset({MISSING}), FunctionName=function)
        except AwsRefusal:
            raise self._unavailable("is not there", FIXES[MISSING]) from None

    async def _at_once(self, reserved: int | None) -> int | str:
        if reserved is not None:
            return int(reserved)
        try:
            account = await self._aws.call("get_account_settings")
        except ServiceUnavailable as refused:
            return f"{refused.message} ({refused.hint})"
        return int(account["AccountLimit"]["UnreservedConcurrentExecutions"])

    async def _try_call(self) -> None:
        """Lambda checks our rights and the parameters, and runs nothing."""
        try:
            await self._aws.call_once(
                "invoke", waits=0, FunctionName=self._function, InvocationType="DryRun", **self._tenant(NOBODY)
            )
        except AwsFault as wrong:
            fault = wrong.fault
            raise self._unavailable(f"cannot be called: {fault.message}", FIXES.get(fault.code, fault.hint)) from None

    @property
    def _where(self) -> str:
        return f"function {self._function} of Lambda in {self._aws.region}"

    def _unavailable(self, what: str, hint: str) -> ServiceUnavailable:
        return ServiceUnavailable(f"{self._where} {what}", where="udf.lambda_function", hint=hint)


def unqualified(function: str) -> str:
    """Without version or alias."""
    parts = function.split(":")
    return ":".join(parts[:7] if parts[0] == "arn" else parts[:1])


def _too_large(size: int) -> Invoked:
    hint = "give it less config, inputs or state, or use `runtime: ecs_udf`"
    error = f"the task has {size} bytes, and Lambda takes {PAYLOAD_BYTES} ({hint})"
    return Invoked(error, started=False, refused=True)


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body[:ERROR_LENGTH].decode(errors="replace")


def _send_tenants(client: Any) -> None:
    """As newer versions of botocore do, where `TenantId` is a parameter of Invoke."""
    client.meta.events.register("provide-client-params.lambda.Invoke", _take_tenant)
    client.meta.events.register("before-call.lambda.Invoke", _put_tenant)


def _take_tenant(params: dict[str, Any], context: dict[str, Any], **_: Any) -> dict[str, Any]:
    context["tenant"] = params.get("TenantId")
    return {name: value for name, value in params.items() if name != "TenantId"}


def _put_tenant(params: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
    if context.get("tenant"):
        params["headers"][TENANT] = context["tenant"]
