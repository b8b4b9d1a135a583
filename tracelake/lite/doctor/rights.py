"""The rights at AWS that each process needs, by its settings; and which of them a role does not have.

Asked of IAM's simulator, so nothing is sent, received or written. Secrets are checked by reading them (`secrets.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tracelake.domain.flow.pressure import Priority
from tracelake.domain.flow.tiers import BUFFER_QUEUE, queue_names, queue_of_tier
from tracelake.errors import SettingsError, TraceError
from tracelake.lite.doctor.run import Finding
from tracelake.settings import SANDBOXES, Settings
from tracelake.wiring import open_identity

FIND: Final = ("sqs:GetQueueUrl", "sqs:GetQueueAttributes")
RECEIVE: Final = ("sqs:ReceiveMessage", "sqs:ChangeMessageVisibility", "sqs:DeleteMessage")
PUT: Final = ("s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts")
WITH_RIGHTS: Final = ("dispatcher", "worker", "sink", "query", "runner")
"""Processes that call services of AWS, secrets aside."""


@dataclass(frozen=True)
class Right:
    actions: Sequence[str]
    resource: str
    context: Mapping[str, str] = field(default_factory=dict)
    """What the request says beside action and resource, for the conditions of policies."""


def examine_rights(settings: Settings, process: str | None, role: str | None) -> list[Finding]:
    """Of one process, or of all that one role has together; `role`: None for that of the caller."""
    if process is not None and process not in WITH_RIGHTS:
        hint = f"they are: {', '.join(WITH_RIGHTS)}; others only read their secrets"
        raise SettingsError(f"no process {process} with rights at AWS", where="--process", hint=hint)
    if settings.profile != "aws":
        return []
    return asyncio.run(_examine(settings, [process] if process else list(WITH_RIGHTS), role))


async def _examine(settings: Settings, processes: Sequence[str], role: str | None) -> list[Finding]:
    try:
        async with open_identity(settings) as identity:
            account, caller = await identity.caller()
            findings = [_identity(settings, account, caller)]
            principal = role or caller
            missing = [
                (process, action, right.resource)
                for process in processes
                for right in rights_of(process, settings, principal)
                for action in await identity.refused(principal, right.actions, right.resource, right.context)
            ]
    except TraceError as wrong:
        return [Finding("rights", ok=False, found=wrong.message, fix=wrong.hint)]
    name = principal.rpartition("/")[2]
    refused = [
        Finding(
            "rights",
            ok=False,
            found=f"{name} may not {action} on {what}, which {process} needs",
            fix=_fix(action, what, name),
        )
        for process, action, what in missing
    ]
    return [*findings, *(refused or [Finding("rights", ok=True, found=f"{name} may do what {_all(processes)} needs")])]


def _identity(settings: Settings, account: str, caller: str) -> Finding:
    if account == settings.aws.account:
        return Finding("aws", ok=True, found=f"{caller} in {settings.aws.region}")
    fix = "use credentials of that account, or correct aws.account"
    return Finding("aws", ok=False, found=f"{caller} is not of the account {settings.aws.account}", fix=fix)


def _fix(action: str, resource: str, name: str) -> str:
    return f"allow the action {action} on {resource} in the policies of {name}"


def _all(processes: Sequence[str]) -> str:
    return f"each of {', '.join(processes)}" if len(processes) > 1 else processes[0]


def rights_of(process: str, settings: Settings, principal: str) -> Iterator[Right]:
    """`principal`: its ARN has the partition of AWS that all others have too."""
    partition = principal.split(":")[1]
    yield from _of_queue(process, settings, partition)
    if settings.objects.backend == "s3" and process != "runner":
        yield from _of_objects(process, settings, partition)
    if process == "dispatcher":
        yield from _of_dispatcher(settings, partition)


def _of_queue(process: str, settings: Settings, partition: str) -> Iterator[Right]:
    if settings.queue.backend != "sqs" or process == "query":
        return
    place = f"arn:{partition}:sqs:{settings.queue.region}:{settings.aws.account}:{settings.queue.prefix}"
    runtimes = settings.runtimes
    actions: tuple[str, ...] = (*FIND, *RECEIVE)
    if process == "dispatcher":
        actions, names = (*FIND, "sqs:SendMessage"), queue_names(item.queue for item in runtimes.values() if item.queue)
        yield Right(("cloudwatch:GetMetricStatistics",), "*")
    elif process == "sink":
        names = [BUFFER_QUEUE]
    else:
        runtime = runtimes[SANDBOXES if process == "runner" else settings.worker.runtime]
        tiers = [queue_of_tier(runtime.queue, tier) for tier in Priority] if runtime.queue else []
        names = tiers
    yield from (Right(actions, place + name) for name in names)
    on_dead = (*FIND, *RECEIVE) if process == "dispatcher" else FIND
    yield from (Right(on_dead, f"{place}{name}-dead") for name in names)


def _of_objects(process: str, settings: Settings, partition: str) -> Iterator[Right]:
    buckets = [f"arn:{partition}:s3:::{name}" for name in (settings.objects.bucket, settings.objects.scratch_bucket)]
    for bucket in buckets:
        yield Right(("s3:ListBucket",), bucket)
        yield Right(("s3:GetObject",) if process == "query" else ("s3:GetObject", *PUT), f"{bucket}/datasets/x")
    if process == "query":
        exports = settings.query.export_prefix.removeprefix("s3://")
        yield Right(PUT, f"arn:{partition}:s3:::{exports}x")
        yield Right(PUT, f"{buckets[1]}/scratch/x")


def _of_dispatcher(settings: Settings, partition: str) -> Iterator[Right]:
    account, tokens, udf = settings.aws.account, settings.tokens, settings.udf
    if tokens.signer == "kms":
        place = f"arn:{partition}:kms:{tokens.kms_region}:{account}"
        alias = f"{tokens.kms_alias_prefix}x"
        kind = {"kms:KeySpec": "ECC_NIST_P256", "kms:KeyUsage": "SIGN_VERIFY"}
        ours = {"kms:ResourceAliases": alias, **kind}
        uses = ("kms:DescribeKey", "kms:GetPublicKey", "kms:Sign", "kms:ScheduleKeyDeletion")
        yield Right(("kms:ListAliases",), "*")
        yield Right((*uses, "kms:CreateAlias", "kms:DeleteAlias"), f"{place}:key/x", ours)
        yield Right(("kms:CreateAlias", "kms:DeleteAlias"), f"{place}:{alias}")
        yield Right(("kms:CreateKey",), "*", kind)
    if tokens.signer == "kms_sealed":
        yield Right(("kms:Encrypt", "kms:Decrypt"), _key_arn(settings, partition))
    if settings.credentials.role_arn:
        yield Right(("sts:AssumeRole",), settings.credentials.role_arn)
    if udf.invoker == "lambda" and udf.lambda_function:
        place = f"arn:{partition}:lambda:{udf.lambda_region}:{account}:function:"
        function = udf.lambda_function
        yield Right(("lambda:InvokeFunction",), function if function.startswith("arn:") else place + function)
    yield from _of_job_runs(settings, partition)
    if space := settings.metrics.cloudwatch_namespace:
        yield Right(("cloudwatch:PutMetricData",), "*", {"cloudwatch:namespace": space})


def _of_job_runs(settings: Settings, partition: str) -> Iterator[Right]:
    for application in {runtime.application for runtime in settings.runtimes.values() if runtime.application}:
        place = (
            f"arn:{partition}:emr-serverless:{settings.emr.region}:{settings.aws.account}:/applications/{application}"
        )
        yield Right(("emr-serverless:StartJobRun", "emr-serverless:GetApplication"), place)
        yield Right(("emr-serverless:GetJobRun", "emr-serverless:CancelJobRun"), f"{place}/jobruns/x")
    if settings.emr.role_arn:
        yield Right(("iam:PassRole",), settings.emr.role_arn, {"iam:PassedToService": "emr-serverless.amazonaws.com"})


def _key_arn(settings: Settings, partition: str) -> str:
    key = settings.tokens.kms_sealing_key or ""
    if key.startswith("arn:"):
        return key
    place = f"arn:{partition}:kms:{settings.tokens.kms_region}:{settings.aws.account}:"
    return place + (key if key.startswith("alias/") else f"key/{key}")
