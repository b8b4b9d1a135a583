"""Every role as data: who may assume it, and what it may do. `tests/deploy` proves what each cannot do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from deploy.aws.jobs import CONDITION, application
from deploy.aws.network import SERVICES
from deploy.aws.storage import BUCKETS, PUT, TASK_ACTIONS, TASK_FOLDERS, queue_id, queues, secret_id, task_objects
from deploy.aws.template import Json, Template, acknowledged, allow, arn, arn_of, deny, named, policy, ref, sub, when

GET: Final = ["s3:GetObject"]
MULTIPART: Final = ["s3:AbortMultipartUpload", "s3:ListMultipartUploadParts"]
RECEIVE: Final = ["sqs:ReceiveMessage", "sqs:ChangeMessageVisibility", "sqs:DeleteMessage"]
FIND_QUEUE: Final = ["sqs:GetQueueUrl", "sqs:GetQueueAttributes"]
TASKS_OF_WORKERS: Final = ("tasks-ecs_platform", "tasks-ecs_platform-bulk")
INTERFACES: Final = "Lambda needs it to plug in the network, has no narrower right, and the code itself is denied all"
INTERFACE_ACTIONS: Final = [
    *("ec2:CreateNetworkInterface", "ec2:DescribeNetworkInterfaces", "ec2:DeleteNetworkInterface"),
    *("ec2:DescribeSubnets", "ec2:AssignPrivateIpAddresses", "ec2:UnassignPrivateIpAddresses"),
]
TASK_ROLE: Final = arn("iam", "role/${Prefix}-task", regional=False)
"""By its name: the role trusts the Dispatcher's, and the Dispatcher's names this one."""
NAMESPACE: Final = "Trace/${Prefix}"
"""Of the gauges that the Dispatchers send to CloudWatch."""
JOB_ROLE: Final = arn("iam", "role/${Prefix}-job", regional=False)
"""By its name, as the one of tasks."""


@dataclass(frozen=True)
class Role:
    name: str
    service: str
    """Which service of AWS may assume it, for resources of this account alone."""
    statements: tuple[Json, ...]
    source: Json | None = None
    """For which resources; None: for any of the account."""
    findings: Mapping[str, str] = field(default_factory=dict)


def add_roles(template: Template) -> None:
    for role in roles():
        _role(template, role)
    template.add("TaskRole", "IAM::Role", _task_role())
    template.add("JobRole", "IAM::Role", _job_role())


def roles() -> list[Role]:
    of_tasks = arn("ecs", "*")
    services = [Role(role_id(name), "ecs-tasks", tuple(what), of_tasks) for name, what in RIGHTS.items()]
    agents = [Role(agent_id(name), "ecs-tasks", tuple(_agent(name)), of_tasks) for name in (*SERVICES, "setup")]
    others = [
        Role("RunnerRole", "lambda", tuple(_runner()), findings={"CKV_AWS_111": INTERFACES}),
        Role("FireRole", "lambda", tuple(_fire_function()), findings={"CKV_AWS_111": INTERFACES}),
        Role("ScheduleRole", "scheduler", (_fire(),), arn("scheduler", "schedule-group/${Prefix}")),
        Role("FlowLogRole", "vpc-flow-logs", (_write_logs("vpc"),)),
        Role("DatabaseMonitorRole", "monitoring.rds", (_monitor(),)),
    ]
    return [*services, *agents, *others]


def role_id(service: str) -> str:
    return f"{service.capitalize()}Role"


def agent_id(service: str) -> str:
    return f"{service.capitalize()}AgentRole"


def _role(template: Template, role: Role) -> None:
    trust: Json = {"StringEquals": {"aws:SourceAccount": ref("AWS::AccountId")}}
    if role.source:
        trust["ArnLike"] = {"aws:SourceArn": role.source}
    who = {"Effect": "Allow", "Principal": {"Service": f"{role.service}.amazonaws.com"}, "Action": "sts:AssumeRole"}
    properties: Json = {"AssumeRolePolicyDocument": policy([{**who, "Condition": trust}])}
    if role.statements:
        document = policy(list(role.statements))
        properties["Policies"] = [{"PolicyName": "rights", "PolicyDocument": document}]
    template.add(role.name, "IAM::Role", properties, **(acknowledged(**role.findings) if role.findings else {}))


def _task_role() -> Json:
    """Of untrusted tasks. Only the Dispatcher assumes it, with the session policy of one attempt."""
    who = {"Effect": "Allow", "Principal": {"AWS": arn_of("DispatcherRole")}, "Action": "sts:AssumeRole"}
    # A session without a policy would have all rights of the role. IAM has no key that says whether there is one;
    # the adapter refuses it, and what follows is what such a session would be limited to.
    return {
        "RoleName": named("task"),
        "AssumeRolePolicyDocument": policy([who]),
        "MaxSessionDuration": 43200,
        "Policies": [{"PolicyName": "rights", "PolicyDocument": policy(_folders_of_tasks())}],
    }


def _job_role() -> Json:
    """Of job runs of EMR Serverless: each has of it what its `executionIamPolicy` allows, the task's session policy."""
    source = {"aws:SourceArn": arn("emr-serverless", "/applications/*")}
    condition = {"StringEquals": {"aws:SourceAccount": ref("AWS::AccountId")}, "ArnLike": source}
    service = {"Service": "emr-serverless.amazonaws.com"}
    who = {"Effect": "Allow", "Principal": service, "Action": "sts:AssumeRole", "Condition": condition}
    return {
        "RoleName": named("job"),
        "AssumeRolePolicyDocument": policy([who]),
        "Policies": [{"PolicyName": "rights", "PolicyDocument": policy(_folders_of_tasks())}],
    }


def _folders_of_tasks() -> list[Json]:
    objects = [pattern for name in BUCKETS for pattern in task_objects(name)]
    statements = [allow(list(TASK_ACTIONS), objects)]
    for name in BUCKETS:
        folders = {"StringLike": {"s3:prefix": [f"{folder}*" for folder in TASK_FOLDERS[name]]}}
        statements.append(allow(["s3:ListBucket"], [arn_of(f"{name}Bucket")], **folders))
    return statements


def _objects() -> list[Json]:
    """Of the platform's own processes: everything in both buckets but their configuration."""
    keys = [sub(f"${{{name}Bucket.Arn}}/*") for name in BUCKETS]
    return [
        allow([*GET, *PUT, *MULTIPART], keys),
        allow(["s3:ListBucket"], [arn_of(f"{name}Bucket") for name in BUCKETS]),
    ]


def _queue_arns(*names: str) -> list[Json]:
    return [arn_of(queue_id(name)) for name in names]


def _dead_arns(*names: str) -> list[Json]:
    return [arn_of(f"{queue_id(name)}Dead") for name in names]


def _receive(*names: str) -> list[Json]:
    """Who finds a queue finds its dead-letter queue too."""
    return [allow([*FIND_QUEUE, *RECEIVE], _queue_arns(*names)), allow(FIND_QUEUE, _dead_arns(*names))]


def _read_secret(service: str) -> list[Json]:
    return [allow(["secretsmanager:GetSecretValue"], [ref(secret_id(service))]), _decrypt("secretsmanager")]


def _decrypt(service: str, *more: str) -> Json:
    via = {"StringEquals": {"kms:ViaService": sub(service + ".${AWS::Region}.amazonaws.com")}}
    return allow(["kms:Decrypt", *more], [arn_of("Key")], **via)


def _dispatcher() -> list[Json]:
    signing = {"ForAnyValue:StringLike": {"kms:ResourceAliases": sub("alias/${Prefix}-task-*")}}
    kind = {"StringEquals": {"kms:KeySpec": "ECC_NIST_P256", "kms:KeyUsage": "SIGN_VERIFY"}}
    keys = [arn("kms", "key/*")]
    aliases = [arn("kms", "alias/${Prefix}-task-*")]
    own_figures = {"StringEquals": {"cloudwatch:namespace": sub(NAMESPACE)}}
    return [
        *_read_secret("dispatcher"),
        *_objects(),
        allow([*FIND_QUEUE, "sqs:SendMessage"], _queue_arns(*queues())),
        allow([*FIND_QUEUE, *RECEIVE], _dead_arns(*queues())),  # `trace queue`
        allow(["cloudwatch:GetMetricStatistics"], ["*"]),
        allow(["cloudwatch:PutMetricData"], ["*"], **own_figures),
        allow(["sts:AssumeRole"], [TASK_ROLE]),
        allow(["kms:ListAliases"], ["*"]),
        allow(["kms:DescribeKey", "kms:GetPublicKey", "kms:Sign", "kms:ScheduleKeyDeletion"], keys, **signing),
        allow(["kms:CreateKey"], ["*"], **kind),
        allow(["kms:CreateAlias", "kms:DeleteAlias"], aliases),
        # The alias of a new key does not exist yet, so only its kind can be asked for.
        allow(["kms:CreateAlias", "kms:DeleteAlias"], keys, **kind),
        allow(["lambda:InvokeFunction"], [arn_of("RunnerFunction")]),
        allow(["lambda:GetFunctionConfiguration", "lambda:GetFunctionConcurrency"], [arn_of("RunnerFunction")]),
        *_start_jobs(),
    ]


def _start_jobs() -> list[Json]:
    """Job runs of the application, with the role of jobs and no other."""
    runs = {"Fn::Sub": ["${Application}/jobruns/*", {"Application": application()}]}
    to_service = {"StringEquals": {"iam:PassedToService": "emr-serverless.amazonaws.com"}}
    statements = [
        allow(["emr-serverless:StartJobRun", "emr-serverless:GetApplication"], [application()]),
        allow(["emr-serverless:GetJobRun", "emr-serverless:CancelJobRun"], [runs]),
        allow(["iam:PassRole"], [JOB_ROLE], **to_service),
    ]
    return [when(CONDITION, statement, ref("AWS::NoValue")) for statement in statements]


def _worker() -> list[Json]:
    return [*_read_secret("worker"), *_objects(), *_receive(*TASKS_OF_WORKERS)]


def _sink() -> list[Json]:
    return [*_read_secret("sink"), *_objects(), *_receive("buffer")]


def _query() -> list[Json]:
    writable = [sub("${DataBucket.Arn}/exports/*"), sub("${ScratchBucket.Arn}/scratch/*")]
    return [
        *_read_secret("query"),
        allow(GET, [sub(f"${{{name}Bucket.Arn}}/*") for name in BUCKETS]),
        allow(["s3:ListBucket"], [arn_of(f"{name}Bucket") for name in BUCKETS]),
        allow([*PUT, *MULTIPART], writable),
    ]


def _setup() -> list[Json]:
    """Creates databases, roles and tokens, once for each version: it may write every secret, and read its own."""
    masters = [sub(f"${{{name}Database.MasterUserSecret.SecretArn}}") for name in ("State", "Data")]
    values = ["secretsmanager:GetSecretValue", "secretsmanager:PutSecretValue"]
    return [
        allow(["secretsmanager:GetSecretValue"], masters),
        allow(values, [ref(secret_id(service)) for service in (*SERVICES, "setup")]),
        _decrypt("secretsmanager", "kms:GenerateDataKey"),
    ]


def _agent(service: str) -> list[Json]:
    """What ECS itself needs to start a container: its image, its log, and the values that it gets as variables."""
    pull = ["ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer", "ecr:BatchCheckLayerAvailability"]
    rights = [allow(["ecr:GetAuthorizationToken"], ["*"]), allow(pull, [arn("ecr", "repository/${Prefix}")])]
    if service == "worker":
        rights.append(allow(["secretsmanager:GetSecretValue"], [ref(secret_id("nodes"))]))
    return [*rights, _write_logs(service), *(_read_secret(service) if service != "setup" else [])]


def _write_logs(group: str) -> Json:
    return allow(["logs:CreateLogStream", "logs:PutLogEvents"], [arn("logs", "log-group:${Prefix}-" + group + ":*")])


def _runner() -> list[Json]:
    """Of the function that runs user code. Lambda writes its log and plugs in its network; the code itself, whose
    calls carry the key `lambda:SourceFunctionArn`, may do nothing.
    """
    return [
        _write_logs("runner"),
        allow(INTERFACE_ACTIONS, ["*"]),
        deny(Action="*", Resource="*", Condition={"Null": {"lambda:SourceFunctionArn": "false"}}),
    ]


def _fire_function() -> list[Json]:
    """It does what the scheduler's process does, with its secret."""
    return [_write_logs("fire"), allow(INTERFACE_ACTIONS, ["*"]), *_read_secret("scheduler")]


def _fire() -> Json:
    return allow(["lambda:InvokeFunction"], [arn("lambda", "function:${Prefix}-fire")])


def _monitor() -> Json:
    streams = arn("logs", "log-group:RDSOSMetrics:*")
    return allow(["logs:CreateLogStream", "logs:PutLogEvents", "logs:DescribeLogStreams"], [streams])


RIGHTS: Final[Mapping[str, list[Any]]] = {
    "dispatcher": _dispatcher(),
    "worker": _worker(),
    "sink": _sink(),
    "query": _query(),
    "gateway": _read_secret("gateway"),
    "scheduler": _read_secret("scheduler"),
    "delivery": _read_secret("delivery"),
    "setup": _setup(),
}
"""What each process may do by itself. None but the function in its place reads the secret of another."""
