"""The calls of tests on SeaweedFS, decided by the rendered role and bucket policies and the session policy. 8 s."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from botocore.exceptions import ClientError, ParamValidationError

from tests.support.aws.iam import Policy, Request, is_allowed
from tests.support.aws.judged_s3 import judge_requests
from tests.support.aws.s3_cases import (
    DATA,
    INSIDE,
    OUTSIDE,
    SCRATCH,
    World,
    clear,
    everything,
    fill,
    grant_in,
    s3_client,
)
from tests.support.aws.stack import Stack
from tracelake.domain.access.session_policy import session_policy
from tracelake.lite.seaweedfs import SeaweedFS

STACK = Stack.of(DataBucket=DATA, ScratchBucket=SCRATCH)
BUCKETS = {DATA: "DataBucketPolicy", SCRATCH: "ScratchBucketPolicy"}
ANYTHING: Policy = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}
FOLDER = "datasets/11111111-1111-1111-1111-111111111111/22222222-2222-2222-2222-222222222222/"
SCRATCH_FOLDER = "scratch/11111111-1111-1111-1111-111111111111/22222222-2222-2222-2222-222222222222/1/"


def of_a_task(
    request: Request, session: Policy, *, identity: list[Policy] | None = None, role: str = "TaskRole"
) -> bool:
    bucket = request.resource.removeprefix("arn:aws:s3:::").split("/")[0]
    attached = BUCKETS.get(bucket)
    policy = STACK.resource(attached)["PolicyDocument"] if attached else None
    rights = STACK.rights(role) if identity is None else identity
    return is_allowed(request, rights, resource=policy, session=session)


WHO = {
    "the role of tasks": ("TaskRole", None),
    "the role of job runs": ("JobRole", None),
    "a role with all rights": ("WorkerRole", [ANYTHING]),
}


@pytest.fixture(scope="module", params=list(WHO))
def world(request: pytest.FixtureRequest, seaweedfs: SeaweedFS) -> Iterator[World]:
    """The session policy gives the same verdicts for any role: EMR takes it as `executionIamPolicy`."""
    role, identity = WHO[request.param]
    root = f"datasets/w{uuid4().hex[:8]}"
    grant = grant_in(root)
    policy = json.loads(session_policy(grant))
    platform = seaweedfs.keys.platform
    ours, theirs = (s3_client(seaweedfs, platform.access, platform.secret) for _ in range(2))
    principal = STACK.arn(role)
    judge_requests(theirs, lambda asked: of_a_task(asked, policy, identity=identity, role=role), principal)
    made = World(root, seaweedfs, theirs, ours, grant)
    fill(made)
    yield made
    clear(made)


@pytest.mark.parametrize("case", INSIDE)
def test_policies_allow_what_seaweedfs_allows(case: str, world: World) -> None:
    INSIDE[case](world)


@pytest.mark.parametrize("case", OUTSIDE)
def test_policies_deny_what_seaweedfs_denies(case: str, world: World) -> None:
    before = everything(world)
    with pytest.raises((ClientError, ParamValidationError)) as refusal:
        OUTSIDE[case](world)
    if isinstance(refusal.value, ClientError):
        assert refusal.value.response["Error"]["Message"] == "by the evaluator"
    assert everything(world) == before


OBJECT = ("s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts")


@pytest.mark.parametrize("role", ["TaskRole", "JobRole"])
@pytest.mark.parametrize("identity", [None, [ANYTHING]], ids=["its rights", "all rights"])
def test_a_session_with_all_rights_reaches_only_folders_of_tasks(role: str, identity: list[Policy] | None) -> None:
    """The second line, with the session policy gone wrong, and with the role gone wrong too."""

    def asks(action: str, bucket: str, key: str = "", **context: str) -> Request:
        resource = f"arn:aws:s3:::{bucket}" + (f"/{key}" if key else "")
        return Request(action, resource, STACK.arn(role), {"aws:SecureTransport": "true", **context})

    def may(request: Request) -> bool:
        return of_a_task(request, ANYTHING, identity=identity, role=role)

    for action in OBJECT:
        assert may(asks(action, DATA, f"{FOLDER}x.parquet"))
        assert may(asks(action, SCRATCH, f"{SCRATCH_FOLDER}x"))
        outside = ("bundles/11111111/x.zip", "exports/o/x", "datasets/x", "_trace/probe", "datasetsx/a/b/c", "x")
        assert not any(may(asks(action, DATA, key)) for key in outside)
        assert not any(may(asks(action, SCRATCH, key)) for key in (f"{FOLDER}x", "scratch/a/b/x", "buffers/a/x"))
    assert may(asks("s3:ListBucket", DATA, **{"s3:prefix": FOLDER}))
    for prefix in ("", "datasets/", "datasets/1111", "bundles/", "exports/"):
        assert not may(asks("s3:ListBucket", DATA, **{"s3:prefix": prefix}))
    assert not may(asks("s3:ListBucket", DATA))
    for action in ("s3:PutBucketPolicy", "s3:DeleteBucket", "s3:GetBucketPolicy", "s3:PutLifecycleConfiguration"):
        assert not may(asks(action, DATA))
    for action in ("s3:PutObjectAcl", "s3:GetObjectVersion", "s3:DeleteObjectVersion", "s3:BypassGovernanceRetention"):
        assert not may(asks(action, DATA, f"{FOLDER}x.parquet"))


def test_plain_http_is_denied_to_everybody() -> None:
    for bucket, name in BUCKETS.items():
        policy, folder = STACK.resource(name)["PolicyDocument"], {DATA: FOLDER, SCRATCH: SCRATCH_FOLDER}[bucket]
        for role in ("TaskRole", "JobRole", "WorkerRole", "DispatcherRole", "QueryRole", "SinkRole"):
            plain: Any = {"aws:SecureTransport": "false"}
            request = Request("s3:GetObject", f"arn:aws:s3:::{bucket}/{folder}x", STACK.arn(role), plain)
            assert not is_allowed(request, [ANYTHING], resource=policy)
            safe = Request(request.action, request.resource, request.principal, {"aws:SecureTransport": "true"})
            assert is_allowed(safe, [ANYTHING], resource=policy)
    for queue in STACK.of_type("SQS::QueuePolicy").values():
        (statement,) = queue["PolicyDocument"]["Statement"]
        request = Request("sqs:SendMessage", statement["Resource"], "", {"aws:SecureTransport": "false"})
        assert not is_allowed(request, [ANYTHING], resource=queue["PolicyDocument"])
