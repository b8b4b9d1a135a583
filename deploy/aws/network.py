"""The VPC: who can reach whom. A connection that is not in `FLOWS` does not exist."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from deploy.aws.template import Json, Template, attribute, named, policy, ref, sub, tags

PUBLIC, PRIVATE, OUTBOUND = "Public", "Private", "Outbound"
ZONES: Final = (0, 1)
SUBNETS: Final = {PUBLIC: (0, 1), PRIVATE: (2, 3), OUTBOUND: (4, 5)}
"""Each kind by the numbers of its blocks of 10.20.0.0/16."""
ENDPOINTS: Final = {
    "Sqs": "sqs",
    "Sts": "sts",
    "Kms": "kms",
    "Secrets": "secretsmanager",
    "Metrics": "monitoring",
    "Logs": "logs",
    "Lambda": "lambda",
    "Registry": "ecr.api",
    "Images": "ecr.dkr",
    "Jobs": "emr-serverless",
}
CONDITIONS: Final = {"Jobs": "HasJobs"}
"""Of endpoints that not every deployment needs."""
HTTPS, POSTGRES, GATEWAY, TASK, INTERNAL = 443, 5432, 8443, 8444, 8445
SERVICES: Final = ("dispatcher", "gateway", "query", "worker", "sink", "delivery", "scheduler")
"""Those that run as services of ECS; the runner is a function of Lambda."""
GROUPS: Final = (*SERVICES, "runner", "jobs", "setup", "balancer", "state", "data", "endpoints")


class Flow(NamedTuple):
    caller: str
    target: str
    """A group; or, outside of the VPC, `nodes`, `internet` or `s3`."""
    port: int


FLOWS: Final = (
    Flow("balancer", "gateway", GATEWAY),
    Flow("dispatcher", "state", POSTGRES),
    *(Flow(caller, "data", POSTGRES) for caller in ("worker", "sink", "query", "delivery")),
    *(Flow("setup", database, POSTGRES) for database in ("state", "data")),
    *(Flow(caller, "dispatcher", TASK) for caller in ("worker", "sink", "runner", "jobs")),
    *(Flow(caller, "dispatcher", INTERNAL) for caller in SERVICES if caller != "dispatcher"),
    *(Flow(caller, "query", TASK) for caller in ("worker", "runner")),
    Flow("gateway", "query", INTERNAL),
    Flow("gateway", "delivery", INTERNAL),
    *(Flow(caller, "endpoints", HTTPS) for caller in (*SERVICES, "setup")),
    # ECS fetches the layers of images from S3 with the network of the task; the runner fetches bundles by signed URLs.
    *(Flow(caller, "s3", HTTPS) for caller in (*SERVICES, "setup", "runner", "jobs")),
    Flow("worker", "nodes", HTTPS),
    Flow("delivery", "internet", HTTPS),
)


def add_network(template: Template) -> None:
    template.add(
        "Vpc",
        "EC2::VPC",
        {"CidrBlock": "10.20.0.0/16", "EnableDnsHostnames": True, "EnableDnsSupport": True, "Tags": tags("vpc")},
    )
    _subnets(template)
    _routes(template)
    for group in GROUPS:
        _group(template, group)
    for flow in FLOWS:
        _connect(template, flow)
    _endpoints(template)
    _flow_log(template)


def subnets(kind: str) -> list[Json]:
    return [ref(f"{kind}Subnet{zone}") for zone in ZONES]


def group_id(name: str) -> Json:
    return attribute(group_name(name), "GroupId")


def group_name(name: str) -> str:
    return f"{name.capitalize()}Group"


def _subnets(template: Template) -> None:
    for kind, blocks in SUBNETS.items():
        for zone, block in zip(ZONES, blocks, strict=True):
            properties = {
                "VpcId": ref("Vpc"),
                "CidrBlock": f"10.20.{block * 16}.0/20",
                "AvailabilityZone": {"Fn::Select": [zone, {"Fn::GetAZs": ""}]},
                "MapPublicIpOnLaunch": False,
                "Tags": tags(f"{kind.lower()}-{zone}"),
            }
            template.add(f"{kind}Subnet{zone}", "EC2::Subnet", properties)


def _routes(template: Template) -> None:
    """Private subnets have no route out of the VPC but to its endpoints."""
    vpc = {"VpcId": ref("Vpc")}
    template.add("Internet", "EC2::InternetGateway", {"Tags": tags("internet")})
    template.add("InternetAttached", "EC2::VPCGatewayAttachment", {**vpc, "InternetGatewayId": ref("Internet")})
    template.add("NatAddress", "EC2::EIP", {"Domain": "vpc", "Tags": tags("nat")}, DependsOn="InternetAttached")
    nat = {
        "AllocationId": attribute("NatAddress", "AllocationId"),
        "SubnetId": ref("PublicSubnet0"),
        "Tags": tags("nat"),
    }
    template.add("Nat", "EC2::NatGateway", nat)
    for kind in SUBNETS:
        template.add(f"{kind}Routes", "EC2::RouteTable", {**vpc, "Tags": tags(kind.lower())})
        for zone in ZONES:
            association = {"SubnetId": ref(f"{kind}Subnet{zone}"), "RouteTableId": ref(f"{kind}Routes")}
            template.add(f"{kind}Routes{zone}", "EC2::SubnetRouteTableAssociation", association)
    out = {"DestinationCidrBlock": "0.0.0.0/0"}
    template.add(
        "PublicOut",
        "EC2::Route",
        {**out, "RouteTableId": ref("PublicRoutes"), "GatewayId": ref("Internet")},
        DependsOn="InternetAttached",
    )
    template.add(
        "OutboundOut", "EC2::Route", {**out, "RouteTableId": ref("OutboundRoutes"), "NatGatewayId": ref("Nat")}
    )


def _group(template: Template, name: str) -> None:
    """Without this rule for loopback, which matches nothing, AWS adds one that allows every connection out."""
    nothing = {"IpProtocol": "-1", "CidrIp": "127.0.0.1/32", "Description": "Nothing but the flows of deploy/aws"}
    properties: Json = {"GroupDescription": f"{name} of Trace", "VpcId": ref("Vpc"), "Tags": tags(name)}
    properties["SecurityGroupEgress"] = [nothing]
    if name == "balancer":
        rule = {"IpProtocol": "tcp", "FromPort": HTTPS, "ToPort": HTTPS, "CidrIp": ref("PublicCidr")}
        properties["SecurityGroupIngress"] = [{**rule, "Description": "Users"}]
    template.add(group_name(name), "EC2::SecurityGroup", properties)


def _connect(template: Template, flow: Flow) -> None:
    name = f"{flow.caller.capitalize()}To{flow.target.capitalize()}{flow.port}"
    rule = {"IpProtocol": "tcp", "FromPort": flow.port, "ToPort": flow.port}
    rule["Description"] = f"{flow.caller} to {flow.target}"
    outside: dict[str, Json] = {
        "nodes": {"CidrIp": ref("NodesCidr")},
        "internet": {"CidrIp": "0.0.0.0/0"},
        "s3": {"DestinationPrefixListId": ref("S3PrefixList")},
    }
    target: Json = outside.get(flow.target) or {"DestinationSecurityGroupId": group_id(flow.target)}
    template.add(f"{name}Out", "EC2::SecurityGroupEgress", {"GroupId": group_id(flow.caller), **rule, **target})
    if flow.target not in outside:
        source = {"GroupId": group_id(flow.target), "SourceSecurityGroupId": group_id(flow.caller)}
        template.add(f"{name}In", "EC2::SecurityGroupIngress", {**source, **rule})


def _endpoints(template: Template) -> None:
    """Only for principals of this account: a key that was stolen elsewhere opens nothing from here."""
    routes = [ref(f"{kind}Routes") for kind in (PRIVATE, OUTBOUND)]
    place = "com.amazonaws.${AWS::Region}."
    s3 = {"VpcId": ref("Vpc"), "ServiceName": sub(f"{place}s3"), "VpcEndpointType": "Gateway", "RouteTableIds": routes}
    template.add("S3Endpoint", "EC2::VPCEndpoint", s3)
    for name, service in ENDPOINTS.items():
        properties: Json = {
            "VpcId": ref("Vpc"),
            "ServiceName": sub(place + service),
            "VpcEndpointType": "Interface",
            "PrivateDnsEnabled": True,
            "SubnetIds": subnets(PRIVATE),
            "SecurityGroupIds": [group_id("endpoints")],
        }
        if not service.startswith("ecr"):
            properties["PolicyDocument"] = _own_account()
        more = {"Condition": CONDITIONS[name]} if name in CONDITIONS else {}
        template.add(f"{name}Endpoint", "EC2::VPCEndpoint", properties, **more)


def _own_account() -> Json:
    own: Any = {"StringEquals": {"aws:PrincipalAccount": ref("AWS::AccountId")}}
    return policy([{"Effect": "Allow", "Principal": "*", "Action": "*", "Resource": "*", "Condition": own}])


def _flow_log(template: Template) -> None:
    properties = {
        "ResourceId": ref("Vpc"),
        "ResourceType": "VPC",
        "TrafficType": "REJECT",
        "LogDestinationType": "cloud-watch-logs",
        "LogGroupName": named("vpc"),
        "DeliverLogsPermissionArn": attribute("FlowLogRole", "Arn"),
    }
    template.add("FlowLog", "EC2::FlowLog", properties, DependsOn="VpcLogs")
