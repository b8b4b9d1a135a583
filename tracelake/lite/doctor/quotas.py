"""Quotas of the account that limit what the settings ask for, by AWS's Service Quotas; Lambda says its own.

SQS, STS, S3 and Secrets Manager have none that this code comes near, or none that can be read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Final

from tracelake.errors import TraceError
from tracelake.lite.doctor.run import Finding
from tracelake.settings import Settings
from tracelake.wiring import open_identity

CLAIMS_A_SECOND: Final = 100.0
"""With fewer signatures a second than this, claims wait for KMS."""
SERVICES_VCPUS: Final = 16.0
"""What the template starts, and one worker more."""
RUN_VCPUS: Final = 6.0
"""Of the smallest job run: a driver and an executor."""


@dataclass(frozen=True)
class AccountQuota:
    service: str
    name: str
    least: float
    why: str


def examine_quotas(settings: Settings) -> list[Finding]:
    return asyncio.run(_examine(settings)) if settings.profile == "aws" else []


def quotas_of(settings: Settings) -> Iterator[AccountQuota]:
    vcpus = "Fargate On-Demand vCPU resource count"
    yield AccountQuota("fargate", vcpus, SERVICES_VCPUS, "the services of the template need so many vCPUs")
    if settings.tokens.signer == "kms":
        why = "each claim is a signature: raise it, or set tokens.signer to kms_sealed"
        yield AccountQuota("kms", "Cryptographic operations (ECC) request rate", CLAIMS_A_SECOND, why)
    if any(runtime.application for runtime in settings.runtimes.values()):
        name = "Max concurrent vCPUs per account"
        yield AccountQuota(
            "emr-serverless", name, RUN_VCPUS * settings.emr.max_runs, "emr.max_runs job runs need so many"
        )


async def _examine(settings: Settings) -> list[Finding]:
    async with open_identity(settings) as identity:
        return [await _finding(identity.quota, quota) for quota in quotas_of(settings)]


async def _finding(read: Callable[[str, str], Awaitable[float | None]], quota: AccountQuota) -> Finding:
    about = f"{quota.name} of {quota.service}"
    try:
        found = await read(quota.service, quota.name)
    except TraceError as wrong:
        return Finding("quotas", None, f"{about} is not known: {wrong.message}", wrong.hint)
    if found is None:
        return Finding("quotas", None, f"{about} is not known: AWS lists none", "look for it in Service Quotas")
    if found >= quota.least:
        return Finding("quotas", ok=True, found=f"{about}: {found:g}")
    fix = f"raise it to {quota.least:g} or more in Service Quotas: {quota.why}"
    return Finding("quotas", None, f"{about} is {found:g}", fix)
