"""Who reaches whom in the rendered network: by security groups, routes, secrets and variables. Costs nothing."""

from __future__ import annotations

import pytest

from deploy.aws.network import FLOWS, GATEWAY, INTERNAL, POSTGRES, SERVICES, TASK
from tests.support.aws.stack import Stack, containers, environment

STACK = Stack.of()
DATABASES = {"state": "StateGroup.GroupId", "data": "DataGroup.GroupId"}


def reaches(caller: str, target: str, port: int) -> bool:
    """A connection needs a rule out of the one group and a rule into the other."""
    source, sink = f"{caller.capitalize()}Group.GroupId", f"{target.capitalize()}Group.GroupId"
    rules_in = STACK.of_type("EC2::SecurityGroupIngress").values()
    rules_out = STACK.of_type("EC2::SecurityGroupEgress").values()
    into = [rule for rule in rules_in if (rule["GroupId"], rule.get("SourceSecurityGroupId")) == (sink, source)]
    out = [rule for rule in rules_out if (rule["GroupId"], rule.get("DestinationSecurityGroupId")) == (source, sink)]
    return all(any(rule["FromPort"] <= port <= rule["ToPort"] for rule in rules) for rules in (into, out))


EVERYBODY = [*SERVICES, "runner", "jobs", "setup", "balancer"]


def test_only_the_dispatcher_and_the_setup_reach_the_state_database() -> None:
    assert {name for name in EVERYBODY if reaches(name, "state", POSTGRES)} == {"dispatcher", "setup"}
    assert {name for name in EVERYBODY if reaches(name, "data", POSTGRES)} == {
        "worker",
        "sink",
        "query",
        "delivery",
        "setup",
    }
    groups = {
        body["DBInstanceIdentifier"]: body["VPCSecurityGroups"] for body in STACK.of_type("RDS::DBInstance").values()
    }
    assert groups == {f"trace-{name}": [group] for name, group in DATABASES.items()}


def test_a_database_accepts_nothing_but_postgres_and_nothing_from_outside() -> None:
    for name, group in DATABASES.items():
        rules = [rule for rule in STACK.of_type("EC2::SecurityGroupIngress").values() if rule["GroupId"] == group]
        assert rules
        assert all(rule["FromPort"] == rule["ToPort"] == POSTGRES and "CidrIp" not in rule for rule in rules)
        assert "SecurityGroupIngress" not in STACK.resource(f"{name.capitalize()}Group")
        assert not any(rule["GroupId"] == group for rule in STACK.of_type("EC2::SecurityGroupEgress").values())


def test_no_process_but_the_dispatcher_is_given_the_address_of_the_state_database() -> None:
    given = {name: environment(container) for name, container, _ in containers(STACK)}
    assert {name for name, env in given.items() if "TRACE_STATE__DSN" in env} == {"dispatcher"}
    assert {name for name, env in given.items() if any("StateDatabase" in value for value in env.values())} == {"setup"}


def test_job_runs_reach_the_task_api_of_the_dispatcher_and_objects_and_nothing_else() -> None:
    assert {(flow.target, flow.port) for flow in FLOWS if flow.caller == "jobs"} == {("dispatcher", TASK), ("s3", 443)}
    network = STACK.resource("JobApplication")["NetworkConfiguration"]
    assert network == {
        "SubnetIds": ["PrivateSubnet0", "PrivateSubnet1"],
        "SecurityGroupIds": ["JobsGroup.GroupId"],
    }


def test_the_runner_reaches_the_task_apis_and_objects_and_nothing_else() -> None:
    targets = {(flow.target, flow.port) for flow in FLOWS if flow.caller == "runner"}
    assert targets == {("dispatcher", TASK), ("query", TASK), ("s3", 443)}
    outs = [
        rule for rule in STACK.of_type("EC2::SecurityGroupEgress").values() if rule["GroupId"] == "RunnerGroup.GroupId"
    ]
    assert len(outs) == 3
    assert not any("CidrIp" in rule for rule in outs)
    assert STACK.resource("RunnerFunction")["VpcConfig"] == {
        "SubnetIds": ["PrivateSubnet0", "PrivateSubnet1"],
        "SecurityGroupIds": ["RunnerGroup.GroupId"],
    }
    assert not any(reaches("runner", name, INTERNAL) for name in SERVICES)


def test_private_subnets_have_no_route_out_and_only_two_services_leave_the_network() -> None:
    routes = {body["RouteTableId"] for body in STACK.of_type("EC2::Route").values()}
    assert routes == {"PublicRoutes", "OutboundRoutes"}
    outside = {
        body["ServiceName"]
        for body in STACK.of_type("ECS::Service").values()
        if "PrivateSubnet0" not in body["NetworkConfiguration"]["AwsvpcConfiguration"]["Subnets"]
    }
    assert outside == {"worker", "delivery"}
    open_ended = {rule["GroupId"] for rule in STACK.of_type("EC2::SecurityGroupEgress").values() if "CidrIp" in rule}
    assert open_ended == {"WorkerGroup.GroupId", "DeliveryGroup.GroupId"}
    services = STACK.of_type("ECS::Service").values()
    assert all(body["NetworkConfiguration"]["AwsvpcConfiguration"]["AssignPublicIp"] == "DISABLED" for body in services)


def test_the_only_way_in_from_outside_is_the_balancer_to_the_gateway() -> None:
    entries = [name for name, body in STACK.of_type("EC2::SecurityGroup").items() if "SecurityGroupIngress" in body]
    assert entries == ["BalancerGroup"]
    assert not any("CidrIp" in rule for rule in STACK.of_type("EC2::SecurityGroupIngress").values())
    assert {
        name for name in SERVICES if any(reaches("balancer", name, port) for port in (GATEWAY, TASK, INTERNAL))
    } == {"gateway"}


@pytest.mark.parametrize("group", STACK.of_type("EC2::SecurityGroup"))
def test_a_group_has_no_rule_of_aws_that_lets_everything_out(group: str) -> None:
    (only,) = STACK.resource(group)["SecurityGroupEgress"]
    assert only["CidrIp"] == "127.0.0.1/32"


def test_services_of_aws_are_reached_through_endpoints_of_the_network() -> None:
    names = {
        body["ServiceName"].removeprefix("com.amazonaws.eu-central-1.")
        for body in STACK.of_type("EC2::VPCEndpoint").values()
    }
    assert names >= {"s3", "sqs", "sts", "kms", "secretsmanager", "monitoring", "logs", "lambda"}
