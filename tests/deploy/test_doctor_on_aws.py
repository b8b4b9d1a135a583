"""`trace doctor` names every right that a process lacks, and finds that the roles of the template lack none."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import boto3
import pytest
from aiohttp import web

from tests.support.aws.iam_server import IamServer, running_iam
from tests.support.aws.stack import ACCOUNT, REGION, Stack
from tests.support.loop_thread import LoopThread
from tracelake.errors import SettingsError
from tracelake.lite.doctor.quotas import examine_quotas
from tracelake.lite.doctor.rights import Right, examine_rights, rights_of
from tracelake.lite.doctor.stores import examine_stores
from tracelake.settings import Settings, load_settings

STACK = Stack.of()
DEPLOYED = ("dispatcher", "worker", "sink", "query")
"""Processes with rights that the template starts; `runner` is a function of Lambda there."""


@contextmanager
def served(server: IamServer) -> Iterator[IamServer]:
    thread, opened = LoopThread(), AsyncExitStack()
    try:
        yield thread.do(opened.enter_async_context(running_iam(server)))
    finally:
        thread.do(opened.aclose())
        thread.close()


@pytest.fixture
def iam(moto: str) -> Iterator[IamServer]:
    del moto  # credentials
    with served(IamServer(STACK, "DispatcherRole")) as server:
        yield server


def settings_for(home: Path, endpoint: str, **more: str) -> Settings:
    given = {"TRACE_PROFILE": "aws", "TRACE_AWS__ACCOUNT": ACCOUNT, "TRACE_AWS__REGION": REGION, **more}
    given["TRACE_RUNTIMES__EMR_SERVERLESS__APPLICATION"] = STACK.arn("JobApplication").rpartition("/")[2]
    return load_settings({**given, "TRACE_AWS__ENDPOINT": endpoint}, home=home)


@pytest.mark.parametrize("process", DEPLOYED)
def test_each_role_of_the_template_has_every_right_that_its_process_needs(
    process: str, iam: IamServer, tmp_path: Path
) -> None:
    role = STACK.arn(f"{process.capitalize()}Role")
    findings = examine_rights(settings_for(tmp_path, iam.url), process, role)
    assert [(finding.name, finding.ok) for finding in findings] == [("aws", True), ("rights", True)], findings


def needed(settings: Settings) -> list[tuple[str, Right, str]]:
    role = STACK.arn("DispatcherRole")
    rights = [(process, right) for process in DEPLOYED for right in rights_of(process, settings, role)]
    return [(process, right, action) for process, right in rights for action in right.actions]


def test_every_right_that_is_missing_is_named_with_what_it_is_for(iam: IamServer, tmp_path: Path) -> None:
    settings = settings_for(tmp_path, iam.url)
    asked = needed(settings)
    assert len({action for _, _, action in asked}) > 20
    for process in DEPLOYED:
        role, own = STACK.arn(f"{process.capitalize()}Role"), [item for item in asked if item[0] == process]
        iam.takes_away = lambda _action, _resource: True
        missing = [finding for finding in examine_rights(settings, process, role) if finding.ok is False]
        assert len(missing) == len(own)
        for _, right, action in own:
            fix = f"allow the action {action} on {right.resource} in the policies of {process.capitalize()}Role"
            assert fix in {finding.fix for finding in missing}


def test_the_rights_of_the_caller_are_checked_where_no_role_is_named(iam: IamServer, tmp_path: Path) -> None:
    findings = examine_rights(settings_for(tmp_path, iam.url), "dispatcher", None)
    assert [finding.ok for finding in findings] == [True, True]
    (_, *of_workers) = examine_rights(settings_for(tmp_path, iam.url), "worker", None)
    assert {finding.ok for finding in of_workers} == {False}, "a Dispatcher receives no messages"
    assert all("sqs:" in finding.found for finding in of_workers)


def test_another_account_and_a_simulator_that_may_not_be_asked_are_findings(iam: IamServer, tmp_path: Path) -> None:
    other = settings_for(tmp_path, iam.url, TRACE_AWS__ACCOUNT="999999999999")
    wrong = examine_rights(other, "dispatcher", None)[0]
    assert (wrong.ok, "aws.account" in str(wrong.fix)) == (False, True)
    iam.simulates = False
    (refused,) = examine_rights(settings_for(tmp_path, iam.url), "dispatcher", None)
    assert (refused.ok, "allow the action iam:SimulatePrincipalPolicy" in str(refused.fix)) == (False, True)


def test_nothing_is_asked_of_aws_without_the_profile(tmp_path: Path) -> None:
    assert examine_rights(load_settings({}, home=tmp_path), None, None) == []
    assert examine_stores(load_settings({}, home=tmp_path)) == []
    with pytest.raises(SettingsError, match="scheduler"):
        examine_rights(load_settings({}, home=tmp_path), "scheduler", None)


def test_buckets_sessions_and_keys_are_tried_and_nothing_stays(moto: str, tmp_path: Path) -> None:
    name = f"t{uuid4().hex[:8]}"
    settings = settings_for(tmp_path, moto, TRACE_AWS__NAME=name)
    findings = examine_stores(settings)
    assert [(finding.name, finding.ok) for finding in findings] == [
        ("objects", False),
        ("objects", False),
        ("credentials", True),
        ("keys", None),
    ]
    assert settings.objects.bucket in findings[0].found
    place: dict[str, Any] = {"region_name": REGION, "endpoint_url": moto}
    s3, kms = boto3.client("s3", **place), boto3.client("kms", **place)
    for bucket in (settings.objects.bucket, settings.objects.scratch_bucket):
        s3.create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": REGION})
    key = kms.create_key(KeySpec="ECC_NIST_P256", KeyUsage="SIGN_VERIFY")["KeyMetadata"]["KeyId"]
    kms.create_alias(AliasName=f"alias/{name}-task-first", TargetKeyId=key)
    assert [finding.ok for finding in examine_stores(settings)] == [True] * 4
    assert s3.list_objects_v2(Bucket=settings.objects.bucket)["KeyCount"] == 0


QUOTAS = {
    "kms": ("Cryptographic operations (ECC) request rate", 100.0),
    "fargate": ("Fargate On-Demand vCPU resource count", 16.0),
    "emr-serverless": ("Max concurrent vCPUs per account", 300.0),
}


@contextmanager
def service_quotas(values: dict[str, float], refusal: str | None = None) -> Iterator[str]:
    """Service Quotas over HTTP, two quotas on a page; its URL."""

    async def answer(request: web.Request) -> web.Response:
        if refusal is not None:
            said = {"__type": refusal, "message": ""}
            return web.json_response(said, status=400, content_type="application/x-amz-json-1.1")
        asked = await request.json()
        service = asked["ServiceCode"]
        pages: list[dict[str, Any]] = [{"Quotas": [{"QuotaName": "another", "Value": 1}], "NextToken": "second"}]
        pages.append({"Quotas": [{"QuotaName": QUOTAS[service][0], "Value": values[service]}] if values else []})
        return web.json_response(pages["NextToken" in asked], content_type="application/x-amz-json-1.1")

    @asynccontextmanager
    async def running() -> AsyncIterator[str]:
        app = web.Application()
        app.router.add_post("/", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        await runner.cleanup()

    thread, opened = LoopThread(), AsyncExitStack()
    try:
        yield thread.do(opened.enter_async_context(running()))
    finally:
        thread.do(opened.aclose())
        thread.close()


def test_quotas_that_limit_what_is_set_are_named_with_what_is_needed(moto: str, tmp_path: Path) -> None:
    del moto  # credentials
    needed = {service: least for service, (_, least) in QUOTAS.items()}
    with service_quotas(needed) as url:
        assert [finding.ok for finding in examine_quotas(settings_for(tmp_path, url))] == [True] * 3
        sealed = {"TRACE_TOKENS__SIGNER": "kms_sealed", "TRACE_TOKENS__KMS_SEALING_KEY": "alias/x"}
        assert len(examine_quotas(settings_for(tmp_path, url, **sealed))) == 2
    for short, (name, least) in QUOTAS.items():
        with service_quotas({**needed, short: least - 1}) as url:
            (found,) = [item for item in examine_quotas(settings_for(tmp_path, url)) if item.ok is None]
        assert (name in found.found, f"raise it to {least:g}" in str(found.fix)) == (True, True)
    with service_quotas({}) as url:
        assert all("is not known" in finding.found for finding in examine_quotas(settings_for(tmp_path, url)))
    with service_quotas({}, "AccessDeniedException") as url:
        fixes = {finding.fix for finding in examine_quotas(settings_for(tmp_path, url))}
    assert all("servicequotas:ListServiceQuotas" in str(fix) for fix in fixes)
    assert examine_quotas(load_settings({}, home=tmp_path)) == []
