"""Job runs of EMR Serverless for tasks of `emr_serverless`: the application in which they start, where there is one.

Its workers are used again for the next job run, so it is of one class of trust: operators of the platform, on data of
organisations. A runtime with code that is not trusted needs an application of its own, and the settings say so.
"""

from __future__ import annotations

from typing import Final

from deploy.aws.network import PRIVATE, group_id, subnets
from deploy.aws.template import Json, Template, arn_of, named, ref, sub, when

CONDITION: Final = "HasJobs"
RUNTIME: Final = "TRACE_RUNTIMES__EMR_SERVERLESS__APPLICATION"
IMAGE: Final = "${AWS::AccountId}.dkr.ecr.${AWS::Region}.amazonaws.com/${Prefix}-jobs:${JobsTag}"
IDLE_MINUTES: Final = 15
DRIVER: Final = {"Cpu": "2 vCPU", "Memory": "8 GB"}
EXECUTOR: Final = {"Cpu": "4 vCPU", "Memory": "16 GB"}


def add_jobs(template: Template) -> None:
    warm = [
        {"Key": kind, "Value": {"WorkerConfiguration": size, "WorkerCount": ref("JobsWarm")}}
        for kind, size in (("Driver", DRIVER), ("Executor", EXECUTOR))
    ]
    properties: Json = {
        "Name": named("jobs"),
        "Type": "Spark",
        "ReleaseLabel": ref("JobsRelease"),
        "ImageConfiguration": {"ImageUri": sub(IMAGE)},
        "AutoStartConfiguration": {"Enabled": True},
        "AutoStopConfiguration": {"Enabled": True, "IdleTimeoutMinutes": IDLE_MINUTES},
        "InitialCapacity": when("HasWarmJobs", warm, ref("AWS::NoValue")),
        "MaximumCapacity": {"Cpu": ref("JobsMaxCpu"), "Memory": ref("JobsMaxMemory")},
        "NetworkConfiguration": {"SubnetIds": subnets(PRIVATE), "SecurityGroupIds": [group_id("jobs")]},
    }
    template.add("JobApplication", "EMRServerless::Application", properties, Condition=CONDITION)


def variable() -> Json:
    """Of the Dispatcher: the application of the runtime; its role has the name that the profile gives it."""
    found = {"Name": RUNTIME, "Value": ref("JobApplication")}
    return when(CONDITION, found, ref("AWS::NoValue"))


def application() -> Json:
    return arn_of("JobApplication")
