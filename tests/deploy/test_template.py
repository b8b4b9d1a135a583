"""The committed template: as the code renders it, accepted by cfn-lint, and with settings that Trace reads. 30 s."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from uuid import uuid4

import pytest
from cfnlint.api import lint_file

from deploy.aws.network import FLOWS, SERVICES
from deploy.aws.render import PLACE, rendered, text_of
from deploy.aws.services import METRICS_PORT, service_list
from deploy.aws.storage import TASK_FOLDERS, queues
from tests.support import ROOT
from tests.support.aws.iam import matches
from tests.support.aws.stack import Stack, containers, environment, template
from tracelake.domain.access.storage_locations import (
    buffer_folder,
    dataset_folder,
    generation_folder,
    scratch_folder,
    shared_buffer_folder,
)
from tracelake.domain.flow.workers import WorkerFleet, WorkerLoad, needed_workers
from tracelake.runtime.process import PROCESSES
from tracelake.settings import load_settings

STACK = Stack.of()
CHECKOV = ROOT / ".cache" / "checkov" / "bin" / "checkov"


def test_the_committed_template_is_what_the_code_renders() -> None:
    assert PLACE.read_text(encoding="utf-8") == text_of(rendered()), "make templates"


def test_cfn_lint_finds_nothing() -> None:
    assert [str(found) for found in lint_file(PLACE)] == []


def test_checkov_finds_nothing_that_is_not_acknowledged(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """`tools/get_checkov.py` installs it beside the lock, of whose packages it needs other versions."""
    command = str(CHECKOV) if CHECKOV.exists() else shutil.which("checkov")
    if command is None:
        assert "aws" not in pytestconfig.getoption("--extra"), "the extra aws needs checkov: tools/get_checkov.py"
        pytest.skip("checkov is not installed")
    argv = [command, "--file", str(PLACE), "--framework", "cloudformation", "--output", "json", "--quiet"]
    ran = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    found = json.loads(ran.stdout)
    assert found["summary"]["passed"] > 100
    assert [(item["check_id"], item["resource"]) for item in found["results"]["failed_checks"]] == []


def test_every_acknowledged_finding_has_a_reason() -> None:
    resources = template()["Resources"].values()
    skipped = [item for body in resources for item in body.get("Metadata", {}).get("checkov", {}).get("skip", [])]
    assert skipped
    assert all(len(item["comment"].split()) > 4 for item in skipped)


def test_it_is_not_larger_than_cloudformation_accepts_from_s3() -> None:
    document = template()
    assert PLACE.stat().st_size < 1_000_000
    assert len(document["Resources"]) <= 500
    assert len(document["Parameters"]) <= 200


@pytest.mark.parametrize("name", SERVICES)
def test_the_variables_of_a_service_are_settings_that_its_process_accepts(name: str, tmp_path: Path) -> None:
    container, definition = next((body, task) for called, body, task in containers(STACK) if called == name)
    assert name in PROCESSES
    assert container["Command"] == [name]
    settings = load_settings(environment(container), home=tmp_path)
    assert settings.metrics.port == METRICS_PORT
    assert definition["TaskRoleArn"] == STACK.arn(f"{name.capitalize()}Role")
    assert settings.profile == "aws"  # tests/test_profile.py: with the names of this template


def test_a_secret_in_a_variable_is_a_reference_to_the_secret_of_its_own_service() -> None:
    for name, container, _ in containers(STACK):
        references = [value for value in environment(container).values() if value.startswith("aws-secret:")]
        assert all(value.startswith(f"aws-secret:trace/{name}#") for value in references)
        fetched = [item["ValueFrom"] for item in container.get("Secrets", [])]
        own = STACK.arn(f"{name.capitalize()}Secret")
        nodes = {f"{STACK.arn('NodesSecret')}:main::"} if name == "worker" else set()
        assert {value for value in fetched if not value.startswith(f"{own}:")} == nodes


def test_listeners_are_where_the_network_lets_others_call_them() -> None:
    called = {(flow.target, flow.port) for flow in FLOWS if flow.target in SERVICES}
    listening = {
        (name, mapped["ContainerPort"])
        for name, container, _ in containers(STACK)
        for mapped in container.get("PortMappings", [])
    }
    assert called == listening
    hosts = {f"{body['Name']}.trace.internal" for body in STACK.of_type("ServiceDiscovery::Service").values()}
    for _, container, _ in containers(STACK):
        addresses = [value for key, value in environment(container).items() if key.startswith("TRACE_ENDPOINTS__")]
        assert {value.split("//")[1].split(":")[0] for value in addresses} <= hosts


def test_there_are_two_dispatchers_and_every_process_has_a_service_but_the_runner() -> None:
    services = {body["ServiceName"]: body for body in STACK.of_type("ECS::Service").values()}
    assert set(services) == set(PROCESSES) - {"runner"}
    assert services["dispatcher"]["DesiredCount"] == 2


def test_there_is_a_queue_for_each_runtime_and_tier_with_a_queue_for_dead_letters() -> None:
    found = {body["QueueName"]: body for body in STACK.of_type("SQS::Queue").values()}
    assert set(found) == {f"trace-{name}{end}" for name in queues() for end in ("", "-dead")}
    assert {"trace-tasks-ecs_platform", "trace-tasks-ecs_platform-bulk", "trace-buffer"} <= set(found)
    for name in queues():
        redrive = found[f"trace-{name}"]["RedrivePolicy"]
        assert redrive["deadLetterTargetArn"].endswith(f":trace-{name}-dead")


def test_the_folders_of_tasks_in_the_policies_are_those_that_the_platform_uses() -> None:
    ids = [uuid4() for _ in range(3)]
    used = {
        "Data": [dataset_folder("b", ids[0], ids[1]), generation_folder("b", *ids)],
        "Scratch": [
            scratch_folder("b", ids[0], ids[1], 7),
            buffer_folder("b", ids[0], ids[1], 7),
            shared_buffer_folder("b", ids[0], 7),
        ],
    }
    for name, folders in used.items():
        for folder in folders:
            assert any(matches(f"{pattern}*", folder.key) for pattern in TASK_FOLDERS[name]), folder


def test_every_process_has_a_group_of_logs_that_ends() -> None:
    groups = {body["LogGroupName"]: body["RetentionInDays"] for body in STACK.of_type("Logs::LogGroup").values()}
    for name, container, _ in containers(STACK):
        assert groups[container["LogConfiguration"]["Options"]["awslogs-group"]] == 365, name
    assert groups[STACK.resource("RunnerFunction")["LoggingConfig"]["LogGroup"]] == 365


def test_what_holds_data_is_kept_when_the_stack_ends() -> None:
    kinds = {"RDS::DBInstance", "S3::Bucket", "SQS::Queue", "KMS::Key", "SecretsManager::Secret"}
    for name, body in template()["Resources"].items():
        if body["Type"].removeprefix("AWS::") in kinds:
            kept = "Snapshot" if "RDS" in body["Type"] else "Retain"
            assert body["DeletionPolicy"] == body["UpdateReplacePolicy"] == kept, name


@pytest.mark.parametrize(("waiting", "running"), [(0, 1), (1, 0), (8, 0), (9, 0), (3, 6), (100, 28), (0, 8)])
def test_workers_are_scaled_to_what_the_decision_function_needs(waiting: int, running: int) -> None:
    """Target tracking wants as many as bring the metric to its target: the metric times what runs, by the target."""
    policy = STACK.resource("WorkerScaling")["TargetTrackingScalingPolicyConfiguration"]
    metrics = {item["Id"]: item for item in policy["CustomizedMetricSpecification"]["Metrics"]}
    workers = 3
    values = {"normalVisible": waiting, "normalNotVisible": running, "bulkVisible": 0, "bulkNotVisible": 0}
    expression = metrics["backlog"]["Expression"].replace("IF(workers > 0, workers, 1)", str(workers))
    for name, value in values.items():
        expression = expression.replace(name, str(value))
    total, by = expression.split(" / ")
    backlog = sum(int(part) for part in total.strip("()").split(" + ")) / int(by)
    wanted = max(-(-backlog * workers // policy["TargetValue"]), 1)
    fleet = WorkerFleet(workers, 1, 8, policy["TargetValue"], 0.0, 0.0, 30.0)
    assert wanted == needed_workers(WorkerLoad(queued=waiting, leased=running), fleet)


def test_the_page_says_what_runs_and_how_large_it_is() -> None:
    page = (ROOT / "docs" / "how-to" / "run_on_aws.md").read_text(encoding="utf-8")
    services = service_list()
    for service in services:
        row = next(line for line in page.splitlines() if line.startswith(f"| {service.name} |"))
        assert f"| {service.count}" in row
        assert f"| {service.cpu / 1024:g} vCPU, {service.memory // 1024} GB |" in row
    cpus = sum(service.cpu * service.count for service in services) / 1024
    memory = sum(service.memory * service.count for service in services) // 1024
    assert f"{cpus:g} vCPU and {memory} GB" in page
    named = set(re.findall(r"\b([A-Z]\w*[a-z]\w*)=", page)) - {"Name", "Key", "Value", "Values"}
    assert named <= template()["Parameters"].keys()
    required = {name for name, body in template()["Parameters"].items() if "Default" not in body}
    assert required <= named
