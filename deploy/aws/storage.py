"""Databases, buckets, queues, keys and secrets: what outlives an update of the services."""

from __future__ import annotations

from typing import Any, Final

from deploy.aws.network import PRIVATE, SERVICES, group_id, subnets
from deploy.aws.template import (
    Json,
    Template,
    acknowledged,
    arn,
    arn_of,
    deny,
    named,
    policy,
    ref,
    sub,
    tags,
)
from tracelake.domain.flow.tiers import queue_names
from tracelake.settings.runtimes import RUNTIMES

BUCKETS: Final = {"Data": "data", "Scratch": "scratch"}
TASK_FOLDERS: Final = {"Data": ("datasets/*/*/",), "Scratch": ("scratch/*/*/*/", "buffers/*/*/")}
"""Where folders of tasks lie (`domain/access/storage_locations.py`): by dataset and generation, by attempt."""
TASK_ACTIONS: Final = (
    "s3:GetObject",
    "s3:PutObject",
    "s3:DeleteObject",
    "s3:AbortMultipartUpload",
    "s3:ListMultipartUploadParts",
)
PUT: Final = ["s3:PutObject", "s3:DeleteObject"]
POSTGRES_VERSION: Final = "17.6"
DELIVERIES: Final = 5
TWO_WEEKS: Final = 14 * 24 * 3600
LONGEST_BYTES: Final = 1024 * 1024


def add_storage(template: Template) -> None:
    _keys(template)
    _secrets(template)
    for name in ("State", "Data"):
        _database(template, name)
    _log_bucket(template)
    for name, bucket in BUCKETS.items():
        _bucket(template, name, bucket)
    for queue in queues():
        _queue(template, queue)


def queues() -> list[str]:
    """One for each runtime and tier, and that of the sink."""
    of_runtimes = [runtime.queue for runtime in RUNTIMES.values() if runtime.queue]
    return queue_names(of_runtimes)


def queue_id(queue: str) -> str:
    return "".join(part.capitalize() for part in queue.replace("_", "-").split("-")) + "Queue"


def secret_id(service: str) -> str:
    return f"{service.capitalize()}Secret"


def _keys(template: Template) -> None:
    """The key of everything at rest; and the first key that signs tokens of tasks, which never leaves KMS."""
    root = {"AWS": arn("iam", "root", regional=False)}
    owner = {"Sid": "ByPoliciesOfTheAccount", "Effect": "Allow", "Principal": root, "Action": "kms:*", "Resource": "*"}
    logs = {
        "Sid": "LogsOfThisDeployment",
        "Effect": "Allow",
        "Principal": {"Service": sub("logs.${AWS::Region}.amazonaws.com")},
        "Action": ["kms:Encrypt", "kms:Decrypt", "kms:ReEncrypt*", "kms:GenerateDataKey*", "kms:DescribeKey"],
        "Resource": "*",
        "Condition": {"ArnLike": {"kms:EncryptionContext:aws:logs:arn": arn("logs", "log-group:${Prefix}-*")}},
    }
    alarms = {
        "Sid": "AlarmsOfThisAccount",
        "Effect": "Allow",
        "Principal": {"Service": "cloudwatch.amazonaws.com"},
        "Action": ["kms:Decrypt", "kms:GenerateDataKey*"],
        "Resource": "*",
        "Condition": {"StringEquals": {"aws:SourceAccount": ref("AWS::AccountId")}},
    }
    at_rest = {"Description": "Trace: data at rest", "EnableKeyRotation": True}
    template.keep("Key", "KMS::Key", {**at_rest, "KeyPolicy": policy([owner, logs, alarms])})
    template.add("KeyAlias", "KMS::Alias", {"AliasName": sub("alias/${Prefix}-data"), "TargetKeyId": ref("Key")})
    signing = {
        "Description": "Trace: tokens of tasks",
        "KeySpec": "ECC_NIST_P256",
        "KeyUsage": "SIGN_VERIFY",
        "KeyPolicy": policy([owner]),
    }
    why = "asymmetric keys have no rotation of KMS; the Dispatcher replaces them (tokens.rotation_days)"
    template.keep("SigningKey", "KMS::Key", signing, **acknowledged(CKV_AWS_7=why))
    alias = {"AliasName": sub("alias/${Prefix}-task-first"), "TargetKeyId": ref("SigningKey")}
    template.keep("SigningKeyAlias", "KMS::Alias", alias)


def _secrets(template: Template) -> None:
    """One for each service, which no other can read. The setup writes the values; those of nodes are yours."""
    why = "its values are replaced by deploy/aws/setup.py or by hand, not by a function of Secrets Manager"
    for service in (*SERVICES, "setup", "nodes"):
        properties = {
            "Name": sub("${Prefix}/" + service),
            "Description": f"What only {service} has"
            if service != "nodes"
            else "The nodes of chains that workers call",
            "KmsKeyId": ref("Key"),
        }
        template.keep(secret_id(service), "SecretsManager::Secret", properties, **acknowledged(CKV_AWS_149=why))


def _database(template: Template, name: str) -> None:
    if name == "State":
        group = {"DBSubnetGroupDescription": "Trace", "SubnetIds": subnets(PRIVATE)}
        template.add("DatabaseSubnets", "RDS::DBSubnetGroup", group)
        family = {"Family": "postgres17", "Description": "Trace", "Parameters": {"rds.force_ssl": "1"}}
        template.add("DatabaseParameters", "RDS::DBParameterGroup", family)
    properties = {
        "DBInstanceIdentifier": named(name.lower()),
        "DBInstanceClass": ref("DatabaseClass"),
        "Engine": "postgres",
        "EngineVersion": POSTGRES_VERSION,
        "AllocatedStorage": "50",
        "MaxAllocatedStorage": 1000,
        "StorageType": "gp3",
        "StorageEncrypted": True,
        "KmsKeyId": arn_of("Key"),
        "MasterUsername": "trace_owner",
        "ManageMasterUserPassword": True,
        "MasterUserSecret": {"KmsKeyId": arn_of("Key")},
        "DBSubnetGroupName": ref("DatabaseSubnets"),
        "DBParameterGroupName": ref("DatabaseParameters"),
        "VPCSecurityGroups": [group_id(name.lower())],
        "PubliclyAccessible": False,
        "MultiAZ": True,
        "BackupRetentionPeriod": 14,
        "CopyTagsToSnapshot": True,
        "DeletionProtection": True,
        "AutoMinorVersionUpgrade": True,
        "EnableCloudwatchLogsExports": ["postgresql", "upgrade"],
        "EnablePerformanceInsights": True,
        "PerformanceInsightsKMSKeyId": arn_of("Key"),
        "MonitoringInterval": 60,
        "MonitoringRoleArn": arn_of("DatabaseMonitorRole"),
        "Tags": tags(name.lower()),
    }
    why = acknowledged(CKV_AWS_161="roles have passwords of their own; the master's is kept and replaced by RDS")
    template.keep(f"{name}Database", "RDS::DBInstance", properties, how="Snapshot", **why)


def _log_bucket(template: Template) -> None:
    """Who read and wrote what, for a year."""
    rules = [{"Id": "Year", "Status": "Enabled", "ExpirationInDays": 365}, _unfinished()]
    properties = {
        "BucketName": _bucket_name("access"),
        **_closed(),
        "BucketEncryption": _encrypted(),
        "VersioningConfiguration": {"Status": "Enabled"},
        "LifecycleConfiguration": {"Rules": rules},
    }
    why = "it is the bucket of logs"
    template.keep("AccessBucket", "S3::Bucket", properties, **acknowledged(CKV_AWS_18=why))
    delivery = {
        "Sid": "LogsOfTheseBuckets",
        "Effect": "Allow",
        "Principal": {"Service": "logging.s3.amazonaws.com"},
        "Action": "s3:PutObject",
        "Resource": sub("${AccessBucket.Arn}/*"),
        "Condition": {"StringEquals": {"aws:SourceAccount": ref("AWS::AccountId")}},
    }
    template.add(
        "AccessBucketPolicy",
        "S3::BucketPolicy",
        {"Bucket": ref("AccessBucket"), "PolicyDocument": policy([delivery, *_no_plain_http("AccessBucket")])},
    )


def _bucket(template: Template, name: str, bucket: str) -> None:
    old = {"Id": "Replaced", "Status": "Enabled", "NoncurrentVersionExpiration": {"NoncurrentDays": 14}}
    properties = {
        "BucketName": _bucket_name(bucket),
        **_closed(),
        "BucketEncryption": _encrypted(),
        "VersioningConfiguration": {"Status": "Enabled"},
        "LifecycleConfiguration": {"Rules": [old, _unfinished()]},
        "LoggingConfiguration": {"DestinationBucketName": ref("AccessBucket"), "LogFilePrefix": f"{bucket}/"},
    }
    why = "the sessions of tasks have rights to S3 alone: with a key of KMS they could read nothing"
    template.keep(f"{name}Bucket", "S3::Bucket", properties, **acknowledged(CKV_AWS_145=why))
    statements = [*_no_plain_http(f"{name}Bucket"), *_tasks_stay_in_folders(name)]
    if name == "Data":
        statements.append(_queries_write_only_exports())
    body = {"Bucket": ref(f"{name}Bucket"), "PolicyDocument": policy(statements)}
    template.add(f"{name}BucketPolicy", "S3::BucketPolicy", body)


def task_objects(name: str) -> list[Json]:
    """The patterns of keys that tasks may ever touch."""
    return [sub(f"${{{name}Bucket.Arn}}/{folder}*") for folder in TASK_FOLDERS[name]]


def _tasks_stay_in_folders(name: str) -> list[Json]:
    """The second line: whatever the session of a task was allowed, it reaches nothing but folders of tasks."""
    task = {"AWS": [arn_of("TaskRole"), arn_of("JobRole")]}
    folders = [f"{folder}*" for folder in TASK_FOLDERS[name]]
    bucket = sub(f"${{{name}Bucket.Arn}}")
    return [
        deny(Sid="TasksOnlyInFolders", Principal=task, Action=list(TASK_ACTIONS), NotResource=task_objects(name)),
        deny(
            Sid="TasksListOnlyFolders",
            Principal=task,
            Action="s3:ListBucket",
            Resource=bucket,
            Condition={"StringNotLike": {"s3:prefix": folders}},
        ),
        deny(
            Sid="TasksOnlyObjects",
            Principal=task,
            NotAction=[*TASK_ACTIONS, "s3:ListBucket"],
            Resource=[bucket, sub(f"${{{name}Bucket.Arn}}/*")],
        ),
    ]


def _queries_write_only_exports() -> Json:
    return deny(
        Sid="QueriesWriteOnlyExports",
        Principal={"AWS": arn_of("QueryRole")},
        Action=[*PUT, "s3:AbortMultipartUpload"],
        NotResource=[sub("${DataBucket.Arn}/exports/*")],
    )


def _no_plain_http(bucket: str) -> list[Json]:
    whole = [sub(f"${{{bucket}.Arn}}"), sub(f"${{{bucket}.Arn}}/*")]
    plain = {"Bool": {"aws:SecureTransport": "false"}}
    return [deny(Sid="NoPlainHttp", Principal="*", Action="s3:*", Resource=whole, Condition=plain)]


def _bucket_name(bucket: str) -> Any:
    return sub("${Prefix}-" + bucket + "-${AWS::AccountId}-${AWS::Region}")


def _closed() -> Json:
    every = ("BlockPublicAcls", "BlockPublicPolicy", "IgnorePublicAcls", "RestrictPublicBuckets")
    owned = {"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]}
    return {"PublicAccessBlockConfiguration": dict.fromkeys(every, True), "OwnershipControls": owned}


def _encrypted() -> Json:
    by = {"ServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}
    return {"ServerSideEncryptionConfiguration": [by]}


def _unfinished() -> Json:
    return {"Id": "Unfinished", "Status": "Enabled", "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 2}}


def _queue(template: Template, queue: str) -> None:
    name, dead = queue_id(queue), f"{queue_id(queue)}Dead"
    common = {"SqsManagedSseEnabled": True, "MessageRetentionPeriod": TWO_WEEKS, "MaximumMessageSize": LONGEST_BYTES}
    why = acknowledged(CKV_AWS_27="encrypted by SQS itself, which checkov does not know; messages hold ids alone")
    template.keep(dead, "SQS::Queue", {"QueueName": named(f"{queue}-dead"), **common}, **why)
    redrive = {"deadLetterTargetArn": arn_of(dead), "maxReceiveCount": DELIVERIES}
    template.keep(name, "SQS::Queue", {"QueueName": named(queue), **common, "RedrivePolicy": redrive}, **why)
    plain = {"Bool": {"aws:SecureTransport": "false"}}
    for queue_name in (name, dead):
        closed = deny(Sid="NoPlainHttp", Principal="*", Action="sqs:*", Resource=arn_of(queue_name), Condition=plain)
        body = {"Queues": [ref(queue_name)], "PolicyDocument": policy([closed])}
        template.add(f"{queue_name}Policy", "SQS::QueuePolicy", body)
