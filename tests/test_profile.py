"""`TRACE_PROFILE=aws` chooses every adapter of AWS by one group of settings, each of which can be set by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.aws.stack import ACCOUNT, REGION, Stack
from tracelake.errors import SettingsError
from tracelake.settings import leaves, load_settings, origin, settings_from_document, to_document

GIVEN = {"TRACE_PROFILE": "aws", "TRACE_AWS__ACCOUNT": ACCOUNT, "AWS_REGION": REGION}
STACK = Stack.of()


def test_one_file_chooses_every_adapter_with_the_names_of_the_template(tmp_path: Path) -> None:
    lines = ['profile = "aws"', "[aws]", f'account = "{ACCOUNT}"', f'region = "{REGION}"']
    (tmp_path / "trace.toml").write_text("\n".join(lines))
    settings = load_settings({}, home=tmp_path)
    assert settings.model_dump() == load_settings(GIVEN, home=tmp_path).model_dump()
    chosen = settings.queue.backend, settings.objects.backend, settings.tokens.signer, settings.udf.invoker
    assert chosen == ("sqs", "s3", "kms", "lambda")
    named = {f"{settings.queue.prefix}buffer", f"{settings.queue.prefix}tasks-ecs_platform"}
    assert named <= {body["QueueName"] for body in STACK.of_type("SQS::Queue").values()}
    assert settings.udf.lambda_function == STACK.resource("RunnerFunction")["FunctionName"]
    assert settings.runtimes["lambda"].timeout_seconds < STACK.resource("RunnerFunction")["Timeout"]
    assert settings.credentials.role_arn == STACK.arn("TaskRole")
    buckets = [STACK.resource(f"{kind}Bucket")["BucketName"] for kind in ("Data", "Scratch")]
    assert [settings.objects.bucket, settings.objects.scratch_bucket] == buckets
    assert settings.query.export_prefix == f"s3://{buckets[0]}/exports/"
    assert STACK.resource("SigningKeyAlias")["AliasName"].startswith(settings.tokens.kms_alias_prefix)
    with_jobs = {**GIVEN, "TRACE_RUNTIMES__EMR_SERVERLESS__APPLICATION": "00jobs"}
    assert load_settings(with_jobs, home=tmp_path).emr.role_arn == STACK.arn("JobRole")
    assert settings.metrics.cloudwatch_namespace == STACK.resource("LeaseLagAlarm")["Namespace"]


def test_region_and_server_are_those_of_every_service(tmp_path: Path) -> None:
    document = load_settings({**GIVEN, "TRACE_AWS__ENDPOINT": "http://127.0.0.1:1"}, home=tmp_path).model_dump()
    for end, value in (("region", REGION), ("endpoint", "http://127.0.0.1:1")):
        found = {
            (group, name): said
            for group, values in document.items()
            if isinstance(values, dict)
            for name, said in values.items()
            if (name == end or name.endswith(f"_{end}")) and group != "tracing"
        }
        assert len(found) >= 8
        assert set(found.values()) == {value}, found


def test_what_is_set_wins_and_says_where_it_came_from(tmp_path: Path) -> None:
    env = {**GIVEN, "TRACE_OBJECTS__BUCKET": "mine", "TRACE_QUEUE__PREFIX": "other-"}
    settings = load_settings(env, home=tmp_path)
    assert (settings.objects.bucket, settings.queue.prefix) == ("mine", "other-")
    assert settings.query.export_prefix == "s3://mine/exports/"
    by_path = {leaf.path: origin(leaf, env, settings) for leaf in leaves()}
    wanted = {"objects.bucket": "TRACE_OBJECTS__BUCKET", "queue.backend": "profile aws", "log.level": "default"}
    assert {path: by_path[path] for path in wanted} == wanted


@pytest.mark.parametrize(
    ("variable", "value", "group"),
    [
        ("TRACE_QUEUE__BACKEND", "pg", "queue"),
        ("TRACE_OBJECTS__BACKEND", "seaweedfs", "objects"),
        ("TRACE_OBJECTS__BACKEND", "seaweedfs", "credentials"),
        ("TRACE_TOKENS__SIGNER", "pem", "tokens"),
        ("TRACE_UDF__INVOKER", "runner", "udf"),
    ],
)
def test_a_port_with_another_adapter_has_nothing_of_the_profile(
    variable: str, value: str, group: str, tmp_path: Path
) -> None:
    lite = load_settings({variable: value}, home=tmp_path)
    assert getattr(load_settings({**GIVEN, variable: value}, home=tmp_path), group) == getattr(lite, group)


def test_a_process_gets_no_more_than_its_document_says(tmp_path: Path) -> None:
    settings = load_settings(GIVEN, home=tmp_path)
    fewer = settings.model_copy(update={"credentials": load_settings({}, home=tmp_path).credentials})
    assert settings_from_document(to_document(fewer)).credentials.role_arn is None


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"TRACE_PROFILE": "aws", "AWS_REGION": REGION}, "aws.account"),
        ({"TRACE_PROFILE": "aws", "TRACE_AWS__ACCOUNT": ACCOUNT}, "aws.region"),
        ({**GIVEN, "TRACE_AWS__ACCOUNT": "12"}, "aws.account"),
        ({**GIVEN, "TRACE_PROFILE": "azure"}, "profile"),
        ({"TRACE_AWS__ACCOUNT": ACCOUNT}, "TRACE_PROFILE=aws"),
        ({"TRACE_UDF__INVOKER": "lambda", "TRACE_UDF__LAMBDA_FUNCTION": "f"}, "objects.backend"),
        ({**GIVEN, "TRACE_OBJECTS__BACKEND": "disk"}, "objects.backend"),
    ],
)
def test_what_cannot_be_meant_is_refused(env: dict[str, str], said: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=said):
        load_settings(env, home=tmp_path)
