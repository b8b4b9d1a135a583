"""The processes: services of ECS, the one-off task of the setup, and the runner function of Lambda."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from deploy.aws.jobs import variable
from deploy.aws.network import GATEWAY, HTTPS, INTERNAL, OUTBOUND, PRIVATE, PUBLIC, TASK, group_id, subnets
from deploy.aws.roles import agent_id, role_id
from deploy.aws.schedules import add_schedules
from deploy.aws.storage import secret_id
from deploy.aws.template import Json, Template, acknowledged, arn_of, attribute, named, ref, sub, when
from tracelake.udf.lambda_function import HANDLER

METRICS_PORT: Final = 9100
STOP_SECONDS: Final = 120
TENANTS: Final = "PER_TENANT"
HOME: Final = "/var/lib/trace"
USER: Final = "10001:10001"
FOLDERS: Final = {"home": HOME, "run": "/run/trace", "tmp": "/tmp"}  # noqa: S108 - a volume of the container
REGION: Final = "${AWS::Region}"


@dataclass(frozen=True)
class Service:
    name: str
    cpu: int
    memory: int
    count: int = 1
    ports: tuple[int, ...] = ()
    outbound: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    """Variables whose value is a key of the service's own secret, fetched by ECS."""


PROFILE: Final = {
    "TRACE_PROFILE": "aws",
    "TRACE_AWS__NAME": "${Prefix}",
    "TRACE_AWS__REGION": REGION,
    "TRACE_AWS__ACCOUNT": "${AWS::AccountId}",
}
"""It has the names of queues, buckets, keys, roles and function as this template makes them."""
TOKEN: Final = {"TRACE_IDENTITY__SERVICE_TOKEN": "service_token"}


def service_list() -> list[Service]:
    dispatcher = {
        **_secret("dispatcher", {"TRACE_STATE__DSN": "state_dsn", "TRACE_DISPATCHER__SECRET_KEYS": "secret_keys"}),
        "TRACE_DISPATCHER__HOST": "0.0.0.0",  # noqa: S104 - within its security group
        "TRACE_DISPATCHER__TASK_PORT": str(TASK),
        "TRACE_DISPATCHER__INTERNAL_PORT": str(INTERNAL),
    }
    query = {
        "TRACE_QUERY__HOST": "0.0.0.0",  # noqa: S104 - within its security group
        "TRACE_QUERY__TASK_PORT": str(TASK),
        "TRACE_QUERY__INTERNAL_PORT": str(INTERNAL),
    }
    gateway = {"TRACE_GATEWAY__HOST": "0.0.0.0", "TRACE_GATEWAY__PORT": str(GATEWAY)}  # noqa: S104 - as above
    delivery = {"TRACE_DELIVERY__HOST": "0.0.0.0", "TRACE_DELIVERY__INTERNAL_PORT": str(INTERNAL)}  # noqa: S104
    listens = ("tls_ca", "tls_cert", "tls_key")
    calls = ("tls_ca",)
    return [
        Service("dispatcher", 1024, 2048, 2, (TASK, INTERNAL), environment=dispatcher, secrets=listens),
        Service("gateway", 512, 1024, 2, (GATEWAY,), environment=gateway, secrets=(*listens, "user_public_key")),
        Service("query", 2048, 8192, 2, (TASK, INTERNAL), environment=query, secrets=listens),
        Service("worker", 4096, 16384, 1, outbound=True, secrets=calls),
        Service("sink", 2048, 8192, 1, secrets=calls),
        Service("delivery", 512, 1024, 1, (INTERNAL,), outbound=True, environment=delivery, secrets=listens),
        Service("scheduler", 256, 1024, 1, secrets=calls),
    ]


DSNS: Final = {
    "worker": {"TRACE_DATA__DSN": "data_dsn"},
    "sink": {"TRACE_DATA__DSN": "data_dsn"},
    "query": {"TRACE_DATA__QUERY_DSN": "data_dsn"},
    "delivery": {"TRACE_DATA__DELIVERY_DSN": "data_dsn"},
}
VARIABLES: Final = {
    "tls_ca": "TLS_CA",
    "tls_cert": "TLS_CERT",
    "tls_key": "TLS_KEY",
    "user_public_key": "TRACE_IDENTITY__USER_PUBLIC_KEY",
}
"""Certificates are files: the image's entry point writes them. Other values are variables as they are."""
LISTENS_ON_TASK, LISTENS_ON_INTERNAL = ("dispatcher", "query"), ("dispatcher", "query", "delivery")


def add_services(template: Template) -> None:
    settings = [{"Name": "containerInsights", "Value": "enabled"}]
    template.add("Cluster", "ECS::Cluster", {"ClusterName": ref("Prefix"), "ClusterSettings": settings})
    names = {"Name": sub("${Prefix}.internal"), "Vpc": ref("Vpc")}
    template.add("Names", "ServiceDiscovery::PrivateDnsNamespace", names)
    for service in service_list():
        _service(template, service)
    _setup(template)
    _balancer(template)
    _runner(template)
    add_schedules(template)


def address(service: str, port: int) -> str:
    return f"https://{service}.${{Prefix}}.internal:{port}"


def addresses() -> dict[str, str]:
    of_tasks = {f"TRACE_ENDPOINTS__{name.upper()}_TASK": address(name, TASK) for name in LISTENS_ON_TASK}
    internal = {f"TRACE_ENDPOINTS__{name.upper()}_INTERNAL": address(name, INTERNAL) for name in LISTENS_ON_INTERNAL}
    return of_tasks | internal


def environment_of(service: Service) -> dict[str, str]:
    token = TOKEN if service.name != "dispatcher" else {}
    own = _secret(service.name, {**DSNS.get(service.name, {}), **token})
    common = {
        "TRACE_HOME": HOME,
        "TRACE_METRICS__PORT": str(METRICS_PORT),
        **PROFILE,
    }
    return {**common, **addresses(), **service.environment, **own}


def _secret(service: str, keys: Mapping[str, str]) -> dict[str, str]:
    """References, which the process itself resolves when it starts."""
    return {variable: f"aws-secret:${{Prefix}}/{service}#{key}" for variable, key in keys.items()}


def _service(template: Template, service: Service) -> None:
    name = service.name.capitalize()
    template.add(f"{name}Definition", "ECS::TaskDefinition", _definition(service))
    network = {
        "Subnets": subnets(OUTBOUND if service.outbound else PRIVATE),
        "SecurityGroups": [group_id(service.name)],
        "AssignPublicIp": "DISABLED",
    }
    rollout = {
        "MinimumHealthyPercent": 100,
        "MaximumPercent": 200,
        "DeploymentCircuitBreaker": {"Enable": True, "Rollback": True},
    }
    properties: Json = {
        "ServiceName": service.name,
        "Cluster": ref("Cluster"),
        "TaskDefinition": ref(f"{name}Definition"),
        "DesiredCount": when("IsRunning", _count(service), 0),
        "LaunchType": "FARGATE",
        "PlatformVersion": "LATEST",
        "NetworkConfiguration": {"AwsvpcConfiguration": network},
        "DeploymentConfiguration": rollout,
        "PropagateTags": "SERVICE",
    }
    more: Json = {}
    if service.name == "gateway":
        target = {"ContainerName": service.name, "ContainerPort": GATEWAY, "TargetGroupArn": ref("GatewayTargets")}
        properties |= {"LoadBalancers": [target], "HealthCheckGracePeriodSeconds": 60}
        more["DependsOn"] = "HttpsListener"
    elif service.ports:
        record = {"DnsRecords": [{"Type": "A", "TTL": 10}], "RoutingPolicy": "MULTIVALUE"}
        template.add(
            f"{name}Name",
            "ServiceDiscovery::Service",
            {
                "Name": service.name,
                "NamespaceId": ref("Names"),
                "DnsConfig": record,
                "HealthCheckCustomConfig": {"FailureThreshold": 1},
            },
        )
        properties["ServiceRegistries"] = [{"RegistryArn": arn_of(f"{name}Name")}]
    template.add(f"{name}Service", "ECS::Service", properties, **more)


def _count(service: Service) -> Json | int:
    return when("ByFunction", 0, service.count) if service.name == "scheduler" else service.count


def _definition(service: Service) -> Json:
    container: Json = {
        "Name": service.name,
        "Image": ref("Image"),
        "Command": [service.name],
        "Essential": True,
        "User": USER,
        "ReadonlyRootFilesystem": True,
        "StopTimeout": STOP_SECONDS,
        "LinuxParameters": {"InitProcessEnabled": True, "Capabilities": {"Drop": ["ALL"]}},
        "Environment": [{"Name": name, "Value": sub(value)} for name, value in sorted(environment_of(service).items())],
        "Secrets": [
            {"Name": VARIABLES[key], "ValueFrom": sub(f"${{{secret_id(service.name)}}}:{key}::")}
            for key in service.secrets
        ],
        "HealthCheck": {
            "Command": ["CMD", "/opt/trace/deploy/image/health"],
            "Interval": 15,
            "Timeout": 10,
            "Retries": 4,
            "StartPeriod": 120,
        },
    }
    if service.name == "dispatcher":
        container["Environment"].append(variable())
    if service.name == "worker":
        nodes = {"Name": "TRACE_RPC_POOLS__MAIN__ENDPOINTS", "ValueFrom": sub("${NodesSecret}:main::")}
        container["Secrets"].append(when("HasNodes", nodes, ref("AWS::NoValue")))
    if service.ports:
        container["PortMappings"] = [{"ContainerPort": port} for port in service.ports]
    return _task(service.name, service.cpu, service.memory, container)


def _task(name: str, cpu: int, memory: int, container: Json) -> Json:
    options = {
        "awslogs-group": named(name),
        "awslogs-region": ref("AWS::Region"),
        "awslogs-stream-prefix": name,
        "mode": "non-blocking",
    }
    mounts = [{"SourceVolume": volume, "ContainerPath": path} for volume, path in FOLDERS.items()]
    container |= {"MountPoints": mounts, "LogConfiguration": {"LogDriver": "awslogs", "Options": options}}
    return {
        "Family": named(name),
        "RequiresCompatibilities": ["FARGATE"],
        "NetworkMode": "awsvpc",
        "Cpu": str(cpu),
        "Memory": str(memory),
        "TaskRoleArn": arn_of(role_id(name)),
        "ExecutionRoleArn": arn_of(agent_id(name)),
        "Volumes": [{"Name": volume} for volume in FOLDERS],
        "ContainerDefinitions": [container],
    }


def _setup(template: Template) -> None:
    """Run by hand before the first start and before each new version: see docs/how-to/run_on_aws.md."""
    environment = {
        "SETUP_PREFIX": "${Prefix}",
        "SETUP_STATE_HOST": "${StateDatabase.Endpoint.Address}",
        "SETUP_STATE_SECRET": "${StateDatabase.MasterUserSecret.SecretArn}",
        "SETUP_DATA_HOST": "${DataDatabase.Endpoint.Address}",
        "SETUP_DATA_SECRET": "${DataDatabase.MasterUserSecret.SecretArn}",
    }
    container: Json = {
        "Name": "setup",
        "Image": ref("Image"),
        "EntryPoint": ["python", "-m", "deploy.aws.setup"],
        "Essential": True,
        "User": USER,
        "ReadonlyRootFilesystem": True,
        "LinuxParameters": {"InitProcessEnabled": True, "Capabilities": {"Drop": ["ALL"]}},
        "Environment": [{"Name": name, "Value": sub(value)} for name, value in sorted(environment.items())],
    }
    template.add("SetupDefinition", "ECS::TaskDefinition", _task("setup", 512, 1024, container))


def _balancer(template: Template) -> None:
    """The only way in: TLS with the certificate of the public address, then TLS again to the Gateways."""
    switches = {
        "deletion_protection.enabled": "true",
        "routing.http.drop_invalid_header_fields.enabled": "true",
        "access_logs.s3.enabled": "true",
        "access_logs.s3.bucket": ref("AccessBucket"),
        "access_logs.s3.prefix": "balancer",
        "idle_timeout.timeout_seconds": "300",
    }
    properties = {
        "Type": "application",
        "Scheme": "internet-facing",
        "Subnets": subnets(PUBLIC),
        "SecurityGroups": [group_id("balancer")],
        "LoadBalancerAttributes": [{"Key": key, "Value": value} for key, value in switches.items()],
    }
    ready = ["AccessBucketPolicy", "InternetAttached"]
    template.add("Balancer", "ElasticLoadBalancingV2::LoadBalancer", properties, DependsOn=ready)
    targets = {
        "Port": GATEWAY,
        "Protocol": "HTTPS",
        "TargetType": "ip",
        "VpcId": ref("Vpc"),
        "HealthCheckProtocol": "HTTPS",
        "HealthCheckPath": "/readyz",
        "HealthCheckIntervalSeconds": 10,
        "HealthyThresholdCount": 2,
        "TargetGroupAttributes": [{"Key": "deregistration_delay.timeout_seconds", "Value": "60"}],
    }
    template.add("GatewayTargets", "ElasticLoadBalancingV2::TargetGroup", targets)
    listener = {
        "LoadBalancerArn": ref("Balancer"),
        "Port": HTTPS,
        "Protocol": "HTTPS",
        "SslPolicy": "ELBSecurityPolicy-TLS13-1-2-2021-06",
        "Certificates": [{"CertificateArn": ref("CertificateArn")}],
        "DefaultActions": [{"Type": "forward", "TargetGroupArn": ref("GatewayTargets")}],
    }
    template.add("HttpsListener", "ElasticLoadBalancingV2::Listener", listener)
    template.outputs["Address"] = {
        "Description": "The name that the public address is an alias of.",
        "Value": attribute("Balancer", "DNSName"),
    }


def _runner(template: Template) -> None:
    """User code: it reaches the task APIs and S3, and its role gives it nothing."""
    variables = {name: value for name, value in addresses().items() if name.endswith("_TASK")}
    environment = {"TRACE_TLS__CA": "/var/task/ca.pem", **{name: sub(value) for name, value in variables.items()}}
    properties = {
        "FunctionName": named("runner"),
        "Code": {"S3Bucket": ref("RunnerBucket"), "S3Key": ref("RunnerKey")},
        "Handler": HANDLER,
        "Runtime": ref("RunnerRuntime"),
        "Architectures": [ref("RunnerArchitecture")],
        "Role": arn_of("RunnerRole"),
        "Timeout": 900,
        "MemorySize": 1024,
        "TenancyConfig": {"TenantIsolationMode": TENANTS},
        "Environment": {"Variables": environment},
        "VpcConfig": {"SubnetIds": subnets(PRIVATE), "SecurityGroupIds": [group_id("runner")]},
        "LoggingConfig": {"LogGroup": named("runner")},
    }
    why = acknowledged(
        CKV_AWS_115="how many run at once is limited by organisation (limits) and Dispatcher (dispatcher.functions)",
        CKV_AWS_173="its variables are addresses, which its code may know",
        CKV_AWS_116="it is called synchronously: a failed call is seen by the Dispatcher",
    )
    template.add("RunnerFunction", "Lambda::Function", properties, DependsOn=["RunnerLogs"], **why)
