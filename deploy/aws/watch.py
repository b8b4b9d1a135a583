"""What is seen of a running system: logs with retention, alarms, a dashboard; and workers by backlog."""

from __future__ import annotations

import json
from typing import Any, Final

from deploy.aws.network import SERVICES
from deploy.aws.roles import NAMESPACE
from deploy.aws.storage import queue_id, queues
from deploy.aws.template import Json, Template, arn_of, attribute, named, ref, sub, when
from tracelake.settings import WorkerSettings

LOG_GROUPS: Final = (*SERVICES, "setup", "runner", "fire", "vpc")
DAYS_KEPT: Final = 365
DATABASES: Final = ("State", "Data")
SLOTS: Final = WorkerSettings().concurrency
TASK_QUEUES: Final = ("tasks-ecs_platform", "tasks-ecs_platform-bulk")
GIGABYTE: Final = 1024**3
MINUTE: Final = 60
WIDTH: Final = 12


def add_watch(template: Template) -> None:
    for group in LOG_GROUPS:
        properties = {"LogGroupName": named(group), "RetentionInDays": DAYS_KEPT, "KmsKeyId": arn_of("Key")}
        template.add(f"{group.capitalize()}Logs", "Logs::LogGroup", properties)
    template.add("AlarmTopic", "SNS::Topic", {"KmsMasterKeyId": ref("Key")})
    mail = {"Protocol": "email", "TopicArn": ref("AlarmTopic"), "Endpoint": ref("AlarmEmail")}
    template.add("AlarmMail", "SNS::Subscription", mail, Condition="HasEmail")
    _alarms(template)
    _dashboard(template)
    _scale_workers(template)


def _alarms(template: Template) -> None:
    for queue in queues():
        name = queue_id(queue)
        dead = {"QueueName": attribute(f"{name}Dead", "QueueName")}
        about = f"messages of {queue} were given up: trace queue dead"
        _alarm(template, f"{name}DeadAlarm", "SQS", "ApproximateNumberOfMessagesVisible", dead, above=0, about=about)
    of_buffer = {"QueueName": attribute("BufferQueue", "QueueName")}
    old = "batches wait for the sink: find out why it does not take them"
    _alarm(template, "BufferAgeAlarm", "SQS", "ApproximateAgeOfOldestMessage", of_buffer, above=900, about=old)
    for name in DATABASES:
        of_database = {"DBInstanceIdentifier": ref(f"{name}Database")}
        disk = "the disk of the database is nearly full"
        _alarm(template, f"{name}DiskAlarm", "RDS", "FreeStorageSpace", of_database, below=5 * GIGABYTE, about=disk)
        busy = "the database is busy: a larger class"
        _alarm(template, f"{name}CpuAlarm", "RDS", "CPUUtilization", of_database, above=85, about=busy, minutes=15)
    for service in SERVICES:
        of_service = {"ClusterName": ref("Cluster"), "ServiceName": service}
        gone = f"no {service} runs"
        count = ("ECS/ContainerInsights", "RunningTaskCount")
        _alarm(template, f"{service.capitalize()}GoneAlarm", *count, of_service, below=1, about=gone, running=True)
    template.resources["SchedulerGoneAlarm"]["Condition"] = "ByProcess"
    for loop, what in (("Lease", "expired leases are not ended"), ("Retry", "tasks that are due are not repeated")):
        late = (NAMESPACE, f"trace_{loop.lower()}_lag_seconds")
        _alarm(template, f"{loop}LagAlarm", *late, {}, above=60, about=f"{what}: see the log of the dispatcher")
    balancer = {"LoadBalancer": attribute("Balancer", "LoadBalancerFullName")}
    errors = ("ApplicationELB", "HTTPCode_Target_5XX_Count")
    _alarm(template, "ErrorsAlarm", *errors, balancer, above=50, about="calls of users fail", statistic="Sum")
    function = {"FunctionName": ref("RunnerFunction")}
    _alarm(template, "ThrottledAlarm", "Lambda", "Throttles", function, above=10, about="functions are throttled")


def _alarm(
    template: Template,
    name: str,
    namespace: str,
    metric: str,
    dimensions: Json,
    *,
    about: str,
    above: int | None = None,
    below: int | None = None,
    minutes: int = 5,
    statistic: str = "Maximum",
    running: bool = False,
) -> None:
    """`running`: it is an alarm only while the services are to run."""
    properties: Json = {
        "AlarmDescription": about,
        "Namespace": sub(namespace) if "/" in namespace else f"AWS/{namespace}",
        "MetricName": metric,
        "Dimensions": [{"Name": key, "Value": value} for key, value in dimensions.items()],
        "Statistic": "Minimum" if above is None else statistic,
        "Period": MINUTE,
        "EvaluationPeriods": minutes,
        "DatapointsToAlarm": minutes,
        "Threshold": below if above is None else above,
        "ComparisonOperator": "LessThanThreshold" if above is None else "GreaterThanThreshold",
        "TreatMissingData": "breaching" if running else "notBreaching",
        "ActionsEnabled": when("IsRunning", then=True, otherwise=False) if running else True,
        "AlarmActions": [ref("AlarmTopic")],
        "OKActions": [ref("AlarmTopic")],
    }
    template.add(name, "CloudWatch::Alarm", properties)


def _dashboard(template: Template) -> None:
    queue_names = [f"${{{queue_id(queue)}.QueueName}}" for queue in queues()]
    databases = [f"${{{name}Database}}" for name in DATABASES]
    waiting = [["AWS/SQS", "ApproximateNumberOfMessagesVisible", "QueueName", name] for name in queue_names]
    ages = [["AWS/SQS", "ApproximateAgeOfOldestMessage", "QueueName", name] for name in queue_names]
    busy = [["AWS/RDS", "CPUUtilization", "DBInstanceIdentifier", name] for name in databases]
    where = ["ClusterName", "${Cluster}", "ServiceName"]
    running = [["ECS/ContainerInsights", "RunningTaskCount", *where, service] for service in SERVICES]
    memory = [["AWS/ECS", "MemoryUtilization", *where, service] for service in SERVICES]
    calls = [
        ["AWS/Lambda", name, "FunctionName", "${RunnerFunction}"] for name in ("Invocations", "Errors", "Throttles")
    ]
    graphs = {
        "Messages that wait": waiting,
        "Age of the oldest message (s)": ages,
        "Processes": running,
        "Memory (%)": memory,
        "Databases (% of CPU)": busy,
        "Functions": calls,
    }
    widgets = [_graph(number, title, metrics) for number, (title, metrics) in enumerate(graphs.items())]
    body = json.dumps({"widgets": widgets}, separators=(",", ":"))
    template.add("Dashboard", "CloudWatch::Dashboard", {"DashboardName": ref("Prefix"), "DashboardBody": sub(body)})


def _graph(number: int, title: str, metrics: list[list[str]]) -> dict[str, Any]:
    place = {"x": number % 2 * WIDTH, "y": number // 2 * 6, "width": WIDTH, "height": 6}
    shown = {"title": title, "metrics": metrics, "region": "${AWS::Region}", "period": MINUTE, "stat": "Maximum"}
    return {"type": "metric", **place, "properties": shown}


def _scale_workers(template: Template) -> None:
    """As many workers as the tasks that wait or run need, `worker.concurrency` for each: what `needed_workers` of
    `domain/flow/workers.py` computes. A message is a task: it is in flight while the task runs.
    """
    where = sub("service/${Cluster}/${WorkerService.Name}")
    target = {
        "ServiceNamespace": "ecs",
        "ScalableDimension": "ecs:service:DesiredCount",
        "ResourceId": where,
        "MinCapacity": when("IsRunning", 1, 0),
        "MaxCapacity": when("IsRunning", ref("WorkersMax"), 0),
    }
    template.add("WorkerCount", "ApplicationAutoScaling::ScalableTarget", target)
    backlog = {
        "CustomizedMetricSpecification": {"Metrics": [*_messages(), *_per_worker()]},
        "TargetValue": SLOTS,
        "ScaleOutCooldown": MINUTE,
        "ScaleInCooldown": 10 * MINUTE,
    }
    policy = {
        "PolicyName": "backlog-per-worker",
        "PolicyType": "TargetTrackingScaling",
        "ScalingTargetId": ref("WorkerCount"),
        "TargetTrackingScalingPolicyConfiguration": backlog,
    }
    template.add("WorkerScaling", "ApplicationAutoScaling::ScalingPolicy", policy)


def _messages() -> list[Json]:
    found = []
    for tier, queue in zip(("normal", "bulk"), TASK_QUEUES, strict=True):
        for state in ("Visible", "NotVisible"):
            dimension = {"Name": "QueueName", "Value": attribute(queue_id(queue), "QueueName")}
            metric = {
                "Namespace": "AWS/SQS",
                "MetricName": f"ApproximateNumberOfMessages{state}",
                "Dimensions": [dimension],
            }
            stat = {"Metric": metric, "Stat": "Maximum"}
            found.append({"Id": f"{tier}{state}", "MetricStat": stat, "ReturnData": False})
    return found


def _per_worker() -> list[Json]:
    dimensions = [{"Name": "ClusterName", "Value": ref("Cluster")}]
    dimensions.append({"Name": "ServiceName", "Value": attribute("WorkerService", "Name")})
    running = {"Namespace": "ECS/ContainerInsights", "MetricName": "RunningTaskCount", "Dimensions": dimensions}
    waiting = "normalVisible + normalNotVisible + bulkVisible + bulkNotVisible"
    return [
        {"Id": "workers", "MetricStat": {"Metric": running, "Stat": "Average"}, "ReturnData": False},
        {"Id": "backlog", "Expression": f"({waiting}) / IF(workers > 0, workers, 1)", "ReturnData": True},
    ]
