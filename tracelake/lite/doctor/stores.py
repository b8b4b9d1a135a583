"""Whether S3, STS and KMS do what the Dispatcher asks of them: each is tried, and what was written is deleted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Final
from uuid import uuid4

from tracelake.domain.access.object_names import Folder, ObjectName
from tracelake.errors import NotFound, TraceError
from tracelake.lite.doctor.run import Finding
from tracelake.ports import KeyPlan
from tracelake.settings import Settings
from tracelake.wiring import make_minter, make_objects, open_signer

SECONDS: Final = 900
"""The shortest life of credentials that STS grants."""


def examine_stores(settings: Settings) -> list[Finding]:
    findings: list[Finding] = []
    if settings.objects.backend == "s3":
        findings += [_bucket(settings, name) for name in (settings.objects.bucket, settings.objects.scratch_bucket)]
        if settings.credentials.role_arn:
            findings.append(asyncio.run(_credentials(settings)))
    if settings.tokens.signer != "pem":
        findings.append(asyncio.run(_keys(settings)))
    return findings


def _bucket(settings: Settings, bucket: str) -> Finding:
    """Lists, writes, reads and deletes; a refusal names the right of the step."""
    store, name = make_objects(settings), ObjectName.parse(f"s3://{bucket}/doctor/{uuid4()}")
    steps: list[Callable[[], object]] = [
        lambda: list(store.objects(Folder.parse(f"s3://{bucket}/doctor/"))),
        lambda: store.put(name, b"x"),
        lambda: store.get(name),
        lambda: store.delete([name]),
    ]
    for step in steps:
        try:
            step()
        except NotFound:
            fix = "create it, or correct objects.bucket and objects.scratch_bucket"
            return Finding("objects", ok=False, found=f"there is no bucket {bucket}", fix=fix)
        except TraceError as wrong:
            return Finding("objects", ok=False, found=wrong.message, fix=wrong.hint)
    return Finding("objects", ok=True, found=f"{bucket} can be listed, written and read")


async def _credentials(settings: Settings) -> Finding:
    role = str(settings.credentials.role_arn)
    minter = make_minter(settings)
    nothing = {"Effect": "Deny", "Action": "*", "Resource": "*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [nothing]})
    try:
        if minter is not None:
            await minter.mint(policy, session="doctor", seconds=SECONDS)
    except TraceError as wrong:
        return Finding("credentials", ok=False, found=wrong.message, fix=wrong.hint)
    return Finding("credentials", ok=True, found=f"STS gives sessions of {role}")


async def _keys(settings: Settings) -> Finding:
    try:
        async with open_signer(settings) as signer:
            keys = await signer.keys()
            for key in keys:
                await signer.follow(KeyPlan(key.kid, (), rotation_due=False))
                await signer.sign(b"{}")
    except TraceError as wrong:
        return Finding("keys", ok=False, found=wrong.message, fix=wrong.hint)
    tokens = settings.tokens
    which = f"with aliases {tokens.kms_alias_prefix}*"
    if tokens.signer == "kms_sealed":
        which = f"encrypted by {tokens.kms_sealing_key}"
    if not keys:
        return Finding("keys", None, f"there is no key of KMS {which}", "the first Dispatcher creates one")
    return Finding("keys", ok=True, found=f"{len(keys)} of KMS sign, {which}")
