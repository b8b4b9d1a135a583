"""What each role of the rendered template can and cannot do, by IAM's rules. Costs nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from deploy.aws.network import SERVICES
from deploy.aws.roles import agent_id, role_id
from tests.support.aws.iam import Request, effects, is_allowed, several, statements_of
from tests.support.aws.stack import ACCOUNT, REGION, Stack

STACK = Stack.of()
ROLES = list(STACK.of_type("IAM::Role"))
QUEUES = {body["QueueName"]: STACK.arn(name) for name, body in STACK.of_type("SQS::Queue").items()}
SECRETS = {name: STACK.arn(name) for name in STACK.of_type("SecretsManager::Secret")}
MASTERS = {
    name: STACK.resolve({"Fn::GetAtt": [name, "MasterUserSecret.SecretArn"]})
    for name in STACK.of_type("RDS::DBInstance")
}
BY_CODE = {"lambda:SourceFunctionArn": STACK.arn("RunnerFunction")}


def may(role: str, action: str, resource: str, **context: Any) -> bool:
    return is_allowed(Request(action, resource, STACK.arn(role), context), STACK.rights(role))


def allowed_statements(role: str) -> Iterator[dict[str, Any]]:
    for policy in STACK.rights(role):
        for statement in statements_of(policy):
            if statement["Effect"] == "Allow":
                yield dict(statement)


EVERY_ACTION = sorted(
    {action for role in ROLES for item in allowed_statements(role) for action in several(item["Action"])}
)
EVERY_RESOURCE = [*QUEUES.values(), *SECRETS.values(), *MASTERS.values(), STACK.arn("DataBucket"), "*"]
EVERY_RESOURCE += [f"{STACK.arn('DataBucket')}/datasets/a/b/c", STACK.arn("TaskRole"), STACK.arn("Key")]
EVERY_RESOURCE += [STACK.arn("SigningKey"), STACK.arn("RunnerFunction"), STACK.arn("JobRole")]
EVERY_RESOURCE += [STACK.arn("JobApplication"), f"{STACK.arn('JobApplication')}/jobruns/x"]
EMR = "emr-serverless.amazonaws.com"


def test_code_on_the_runner_may_do_nothing_at_all() -> None:
    assert len(EVERY_ACTION) > 30
    more = ("s3:GetObject", "sqs:ReceiveMessage", "secretsmanager:GetSecretValue", "iam:CreateUser", "ec2:RunInstances")
    for action in (*EVERY_ACTION, *more):
        assert not any(may("RunnerRole", action, resource, **BY_CODE) for resource in EVERY_RESOURCE), action
    trusted = [item["Principal"] for item in statements_of(STACK.trust("TaskRole"))]
    assert trusted == [{"AWS": STACK.arn("DispatcherRole")}]


def test_the_runner_has_no_right_to_objects_queues_secrets_or_keys_even_by_lambda_itself() -> None:
    services = {action.split(":")[0] for item in allowed_statements("RunnerRole") for action in several(item["Action"])}
    assert services == {"logs", "ec2"}


@pytest.mark.parametrize("service", [*SERVICES, "setup"])
def test_a_service_reads_its_own_secret_and_no_other(service: str) -> None:
    own, nodes = {STACK.arn(f"{service.capitalize()}Secret")}, {STACK.arn("NodesSecret")}
    by_setup = {*SECRETS.values(), *MASTERS.values()} - nodes
    read = {
        secret
        for secret in (*SECRETS.values(), *MASTERS.values())
        if may(role_id(service), "secretsmanager:GetSecretValue", secret)
    }
    assert read == (by_setup if service == "setup" else own)
    by_agent = {
        secret for secret in by_setup | nodes if may(agent_id(service), "secretsmanager:GetSecretValue", secret)
    }
    assert by_agent == (set() if service == "setup" else own | nodes if service == "worker" else own)


@pytest.mark.parametrize("role", ROLES)
def test_only_the_setup_writes_secrets(role: str) -> None:
    writers = [secret for secret in SECRETS.values() if may(role, "secretsmanager:PutSecretValue", secret)]
    assert bool(writers) == (role == "SetupRole")


TAKES = {
    "WorkerRole": {"trace-tasks-ecs_platform", "trace-tasks-ecs_platform-bulk"},
    "SinkRole": {"trace-buffer"},
    "DispatcherRole": {name for name in QUEUES if name.endswith("-dead")},  # lists and sends again what was given up
}


@pytest.mark.parametrize("role", ROLES)
def test_who_sends_and_who_receives_messages(role: str) -> None:
    takes = {name for name, queue in QUEUES.items() if may(role, "sqs:ReceiveMessage", queue)}
    sends = {name for name, queue in QUEUES.items() if may(role, "sqs:SendMessage", queue)}
    assert takes == TAKES.get(role, set())
    live = {name for name in QUEUES if not name.endswith("-dead")}
    found = {name for name, queue in QUEUES.items() if may(role, "sqs:GetQueueUrl", queue)}
    assert found == (takes | sends) | {f"{name}-dead" for name in (takes | sends) & live}, "with its dead letters"
    assert sends == (live if role == "DispatcherRole" else set())
    for action in ("sqs:PurgeQueue", "sqs:DeleteQueue", "sqs:SetQueueAttributes", "sqs:AddPermission"):
        assert not any(may(role, action, queue) for queue in QUEUES.values())


@pytest.mark.parametrize("role", ROLES)
def test_only_the_dispatcher_passes_a_role_and_only_that_of_jobs_to_emr_serverless(role: str) -> None:
    def passes(which: str, service: str) -> bool:
        return may(role, "iam:PassRole", which, **{"iam:PassedToService": service})

    assert passes(STACK.arn("JobRole"), EMR) == (role == "DispatcherRole")
    assert not any(passes(STACK.arn("JobRole"), service) for service in ("lambda.amazonaws.com", "ecs.amazonaws.com"))
    assert not any(passes(STACK.arn(other), EMR) for other in ROLES if other != "JobRole")
    assert not passes("arn:aws:iam::1:role/x", EMR)
    for item in allowed_statements(role):
        assert "iam:PassRole" not in several(item["Action"]) or list(several(item["Resource"])) == [
            STACK.arn("JobRole")
        ]


@pytest.mark.parametrize("role", ROLES)
def test_only_the_dispatcher_starts_and_ends_job_runs_and_only_of_its_application(role: str) -> None:
    own, dispatcher = STACK.arn("JobApplication"), role == "DispatcherRole"
    other = own.replace("00jobapplication", "00other")
    for action, end in (("StartJobRun", ""), ("GetJobRun", "/jobruns/x"), ("CancelJobRun", "/jobruns/x")):
        assert may(role, f"emr-serverless:{action}", own + end) == dispatcher
        assert not may(role, f"emr-serverless:{action}", other + end)
    for action in ("CreateApplication", "UpdateApplication", "DeleteApplication"):
        assert not may(role, f"emr-serverless:{action}", own)


def test_the_role_of_jobs_has_the_rights_of_the_role_of_tasks_and_no_others() -> None:
    assert STACK.rights("JobRole") == STACK.rights("TaskRole")


SOURCES = {
    "ecs-tasks.amazonaws.com": f"arn:aws:ecs:{REGION}:{ACCOUNT}:task/x",
    EMR: f"arn:aws:emr-serverless:{REGION}:{ACCOUNT}:/applications/00x",
    "scheduler.amazonaws.com": f"arn:aws:scheduler:{REGION}:{ACCOUNT}:schedule-group/trace",
}


@pytest.mark.parametrize("role", [role for role in ROLES if role != "TaskRole"])
def test_a_service_of_aws_assumes_a_role_for_this_account_only(role: str) -> None:
    (statement,) = statements_of(STACK.trust(role))
    service = statement["Principal"]["Service"]

    def trusts(principal: str, **context: str) -> bool:
        request = Request("sts:AssumeRole", STACK.arn(role), principal, context)
        return effects(request, [STACK.trust(role)], by_principal=True) == {"Allow"}

    source = {"aws:SourceArn": SOURCES[service]} if service in SOURCES else {}
    assert trusts(service, **{"aws:SourceAccount": ACCOUNT}, **source)
    assert not trusts(service, **{"aws:SourceAccount": "999999999999"}, **source)
    assert not trusts(service, **source)
    assert not trusts("ec2.amazonaws.com", **{"aws:SourceAccount": ACCOUNT}, **source)
    assert not trusts(STACK.arn("WorkerRole"), **{"aws:SourceAccount": ACCOUNT}, **source)
    if source:
        other = SOURCES[service].replace(ACCOUNT, "999999999999")
        assert not trusts(service, **{"aws:SourceAccount": ACCOUNT, "aws:SourceArn": other})


@pytest.mark.parametrize("role", ROLES)
def test_only_the_dispatcher_assumes_the_role_of_tasks_signs_and_calls_the_runner(role: str) -> None:
    dispatcher = role == "DispatcherRole"
    trust = STACK.trust("TaskRole")
    assume = Request("sts:AssumeRole", STACK.arn("TaskRole"), STACK.arn(role))
    assert (effects(assume, [trust], by_principal=True) == {"Allow"}) == dispatcher
    assert may(role, "sts:AssumeRole", STACK.arn("TaskRole")) == dispatcher
    assert not any(may(role, "sts:AssumeRole", STACK.arn(other)) for other in ROLES if other != "TaskRole")
    aliases = {"kms:ResourceAliases": ["alias/trace-task-first"]}
    assert may(role, "kms:Sign", STACK.arn("SigningKey"), **aliases) == dispatcher
    assert not may(role, "kms:Sign", STACK.arn("SigningKey"), **{"kms:ResourceAliases": ["alias/other-task-first"]})
    assert not may(role, "kms:ScheduleKeyDeletion", STACK.arn("Key"), **{"kms:ResourceAliases": ["alias/trace-data"]})
    assert may(role, "lambda:InvokeFunction", STACK.arn("RunnerFunction")) == dispatcher


@pytest.mark.parametrize("role", ROLES)
def test_no_role_may_change_rights_or_has_a_whole_service(role: str) -> None:
    for item in allowed_statements(role):
        assert not any("*" in action for action in several(item["Action"]))
        assert "NotAction" not in item
        assert "NotResource" not in item
        assert "*" not in several(item["Resource"]) or not {
            action.split(":")[0] for action in several(item["Action"])
        } & {"s3", "sqs", "secretsmanager", "iam", "sts", "lambda"}
    changes = ("iam:PutRolePolicy", "iam:AttachRolePolicy", "iam:UpdateAssumeRolePolicy", "iam:CreateAccessKey")
    for action in (*changes, "kms:PutKeyPolicy", "kms:CreateGrant", "lambda:UpdateFunctionCode", "s3:PutBucketPolicy"):
        assert not any(may(role, action, resource) for resource in EVERY_RESOURCE)


def test_the_query_service_writes_only_exports_and_scratch_whatever_its_role_says() -> None:
    data, scratch = STACK.arn("DataBucket"), STACK.arn("ScratchBucket")
    policy = STACK.resource("DataBucketPolicy")["PolicyDocument"]
    all_rights = {"Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}
    safe = {"aws:SecureTransport": "true"}
    for action in ("s3:PutObject", "s3:DeleteObject"):
        assert may("QueryRole", action, f"{data}/exports/o/x", **safe)
        assert may("QueryRole", action, f"{scratch}/scratch/o/t/1/x", **safe)
        for key in ("datasets/a/b/c", "bundles/o/x.zip", "exportsx/a"):
            assert not may("QueryRole", action, f"{data}/{key}", **safe)
            request = Request(action, f"{data}/{key}", STACK.arn("QueryRole"), safe)
            assert not is_allowed(request, [all_rights], resource=policy)


def test_processes_without_objects_have_no_right_to_any() -> None:
    for role in ("GatewayRole", "DeliveryRole", "SchedulerRole", "SetupRole", *map(agent_id, SERVICES)):
        assert not any(
            action.startswith("s3:") for item in allowed_statements(role) for action in several(item["Action"])
        )
