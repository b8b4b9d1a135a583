"""What fires cron sources in place of the scheduler's process: a schedule of EventBridge, and the function it calls."""

from __future__ import annotations

from typing import Final

from deploy.aws.network import INTERNAL, PRIVATE, group_id, subnets
from deploy.aws.template import Template, acknowledged, arn_of, named, ref, sub, when

EVERY: Final = "rate(1 minute)"
"""The shortest that EventBridge offers."""
TIMEOUT_SECONDS: Final = 180


def add_schedules(template: Template) -> None:
    template.add("ScheduleGroup", "Scheduler::ScheduleGroup", {"Name": ref("Prefix")})
    _function(template)
    target = {
        "Arn": arn_of("FireFunction"),
        "RoleArn": arn_of("ScheduleRole"),
        # The next call comes a minute later, and does what this one should have done.
        "RetryPolicy": {"MaximumRetryAttempts": 0, "MaximumEventAgeInSeconds": 60},
    }
    properties = {
        "Name": named("fire"),
        "GroupName": ref("ScheduleGroup"),
        "ScheduleExpression": EVERY,
        "FlexibleTimeWindow": {"Mode": "OFF"},
        "State": when("IsRunning", "ENABLED", "DISABLED"),
        "Target": target,
    }
    why = acknowledged(CKV_AWS_297="it sends nothing: what it calls has no input")
    template.add("FireSchedule", "Scheduler::Schedule", properties, Condition="ByFunction", **why)


def _function(template: Template) -> None:
    """Of the same image as all services, with Lambda's runtime client in place of their entry point."""
    variables = {
        "FIRE_PREFIX": ref("Prefix"),
        "FIRE_DISPATCHER": sub(f"https://dispatcher.${{Prefix}}.internal:{INTERNAL}"),
    }
    properties = {
        "FunctionName": named("fire"),
        "PackageType": "Image",
        "Code": {"ImageUri": ref("Image")},
        "ImageConfig": {
            "EntryPoint": ["python", "-m", "awslambdaric"],
            "Command": ["deploy.aws.fire.handler"],
            "WorkingDirectory": "/opt/trace",
        },
        "Architectures": [ref("RunnerArchitecture")],
        "Role": arn_of("FireRole"),
        "Timeout": TIMEOUT_SECONDS,
        "MemorySize": 256,
        "ReservedConcurrentExecutions": 5,
        "Environment": {"Variables": variables},
        # It has the place of the scheduler's process: the same flows.
        "VpcConfig": {"SubnetIds": subnets(PRIVATE), "SecurityGroupIds": [group_id("scheduler")]},
        "LoggingConfig": {"LogGroup": named("fire")},
    }
    why = acknowledged(
        CKV_AWS_173="its variables are addresses and names",
        CKV_AWS_116="a call that fails is repeated by the schedule's next one",
    )
    more = {"DependsOn": ["FireLogs"], "Condition": "ByFunction", **why}
    template.add("FireFunction", "Lambda::Function", properties, **more)
