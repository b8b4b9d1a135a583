"""What `trace up` gives its processes for services of AWS, and what `trace doctor` says of SQS."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import uuid4

import boto3
import pytest

from tests.support.queues import sqs_settings
from tests.support.udf.bundles import zipped
from tracelake.lite.doctor.functions import examine_functions, examine_job_runs
from tracelake.lite.doctor.queue import examine_queue
from tracelake.lite.network_ports import Ports
from tracelake.lite.plan import children
from tracelake.lite.provision import Dsns, ExternalDsns
from tracelake.runtime.process import PROCESSES
from tracelake.runtime.tls import TlsFiles
from tracelake.settings import load_settings

WITH_QUEUE = ["dispatcher", "worker", "sink", "runner"]
LAMBDA = {"TRACE_UDF__INVOKER": "lambda", "TRACE_OBJECTS__BACKEND": "seaweedfs"}
KEYS = {"AWS_ACCESS_KEY_ID": "KEY", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_PROFILE": "trace"}


@pytest.mark.parametrize("profile", ["pg", "sqs", "kms", "lambda", "cloudwatch", "s3", "s3_own_keys"])
def test_only_processes_with_a_queue_get_it_and_credentials_only_for_services_of_aws(
    profile: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    given = {
        "pg": {},
        "sqs": {"TRACE_QUEUE__BACKEND": "sqs", "TRACE_QUEUE__PREFIX": "prod-"},
        "kms": {"TRACE_TOKENS__SIGNER": "kms"},
        "lambda": {**LAMBDA, "TRACE_UDF__LAMBDA_FUNCTION": "trace-runner"},
        "cloudwatch": {"TRACE_METRICS__CLOUDWATCH_NAMESPACE": "Trace/test"},
        "s3": {"TRACE_OBJECTS__BACKEND": "s3"},
        "s3_own_keys": {
            "TRACE_OBJECTS__BACKEND": "s3",
            "TRACE_OBJECTS__ACCESS_KEY_ID": "k",
            "TRACE_OBJECTS__SECRET_ACCESS_KEY": "s",
        },
    }[profile]
    files = TlsFiles(ca=tmp_path / "ca", cert=tmp_path / "cert", key=tmp_path / "key")
    made = children(
        PROCESSES,
        load_settings(given, home=tmp_path),
        ports=Ports(*range(9)),
        tls=files,
        dsns=Dsns(*["postgresql://u:p@h/d"] * 5),
        token_file=tmp_path.joinpath,
        issuer="PEM",
    )
    launches = {child.name: child.launch() for child in made}
    queues = {name: json.loads(launch.stdin or b"")["queue"] for name, launch in launches.items()}
    chosen = ("prefix", "prod-") if profile == "sqs" else ("dsn", "postgresql://u:p@h/d")
    assert sorted(name for name, queue in queues.items() if chosen in queue.items()) == sorted(WITH_QUEUE)
    keyed = {name for name, launch in launches.items() if launch.env.items() >= KEYS.items()}
    alone = {"dispatcher"}
    with_objects = {"dispatcher", "worker", "sink", "query"}
    wanted = {"pg": set(), "s3_own_keys": set(), "sqs": set(WITH_QUEUE), "s3": with_objects}
    assert keyed == wanted.get(profile, alone)
    sending = {name for name, launch in launches.items() if b"Trace/test" in (launch.stdin or b"")}
    assert sending == (alone if profile == "cloudwatch" else set())


def test_the_doctor_finds_the_runner_function_and_what_is_wrong_with_it(moto: str, tmp_path: Path) -> None:
    name = f"runner-{uuid4().hex[:8]}"
    given = {**LAMBDA, "TRACE_UDF__LAMBDA_FUNCTION": name, "TRACE_UDF__LAMBDA_ENDPOINT": moto}
    settings = load_settings(given, home=tmp_path)
    (missing,) = examine_functions(settings)
    assert (missing.ok, "is not there" in missing.found) == (False, True)
    assert "udf.lambda_function" in str(missing.fix)
    create_function(moto, name, seconds=300)
    (short,) = examine_functions(settings)
    assert (short.ok, "tasks of lambda may run longer" in short.found) == (None, True)
    assert "runtimes.lambda.timeout_seconds" in str(short.fix)
    (fine,) = examine_functions(
        load_settings({**given, "TRACE_RUNTIMES__LAMBDA__TIMEOUT_SECONDS": "290"}, home=tmp_path)
    )
    assert (fine.ok, fine.found) == (True, f"{name} on Lambda: python3.12, 1024 MB, 300 s, 500 at once")
    fewer = {**given, "TRACE_RUNTIMES__LAMBDA__TIMEOUT_SECONDS": "290", "TRACE_DISPATCHER__FUNCTIONS": "501"}
    (throttled,) = examine_functions(load_settings(fewer, home=tmp_path))
    assert (throttled.ok, "Concurrent executions" in str(throttled.fix)) == (None, True)
    (unnamed,) = examine_functions(load_settings(LAMBDA, home=tmp_path))
    assert unnamed.ok is False
    assert examine_functions(load_settings({}, home=tmp_path)) == []


def test_the_doctor_finds_the_applications_of_runtimes_and_names_what_is_missing(moto: str, tmp_path: Path) -> None:
    place = {"region_name": "us-east-1", "endpoint_url": moto}
    emr = boto3.client("emr-serverless", **place)
    application = emr.create_application(name="jobs", releaseLabel="emr-7.0.0", type="SPARK")["applicationId"]
    given = {
        "TRACE_OBJECTS__BACKEND": "s3",
        "TRACE_EMR__ROLE_ARN": "arn:aws:iam::123456789012:role/trace-job",
        "TRACE_EMR__ENDPOINT": moto,
        "TRACE_RUNTIMES__EMR_SERVERLESS__APPLICATION": application,
    }
    (fine,) = examine_job_runs(load_settings(given, home=tmp_path))
    assert (fine.ok, application in fine.found, "emr-7.0.0" in fine.found) == (True, True, True)
    gone = {**given, "TRACE_RUNTIMES__EMR_SERVERLESS__APPLICATION": "00none"}
    (missing,) = examine_job_runs(load_settings(gone, home=tmp_path))
    assert (missing.ok, "is not there" in missing.found) == (False, True)
    assert "create the application" in str(missing.fix)
    assert examine_job_runs(load_settings({}, home=tmp_path)) == []


def create_function(moto: str, name: str, *, seconds: int) -> None:
    place = {"region_name": "us-east-1", "endpoint_url": moto}
    trust = {"RoleName": name, "AssumeRolePolicyDocument": "{}"}
    role = boto3.client("iam", **place).create_role(**trust)["Role"]["Arn"]
    client = boto3.client("lambda", **place)
    client.create_function(
        FunctionName=name,
        Runtime="python3.12",
        Handler="main.handler",
        Role=role,
        Code={"ZipFile": zipped(("main.py", b"def handler(event, context): return None"))},
        Timeout=seconds,
        MemorySize=1024,
    )
    client.put_function_concurrency(FunctionName=name, ReservedConcurrentExecutions=500)


def test_no_database_is_embedded_for_a_queue_on_sqs() -> None:
    dsn = "postgresql://h/d"
    assert ExternalDsns(state=dsn, data=dsn, query=None, queue=None).embeds_data
    assert not ExternalDsns(state=dsn, data=dsn, query=None, queue=None, queue_is_sqs=True).embeds_data


def test_the_doctor_finds_a_queue_that_is_missing_and_then_all_of_them(moto: str, tmp_path: Path) -> None:
    settings = load_settings({}, home=tmp_path).model_copy(update={"queue": sqs_settings(moto, create=False)})
    (missing,) = examine_queue(settings)
    assert missing.ok is False
    assert f"{settings.queue.prefix}tasks-ecs_platform" in missing.found
    assert "-dead" in str(missing.fix)
    creating = settings.model_copy(update={"queue": settings.queue.model_copy(update={"create": True})})
    assert [finding.ok for finding in examine_queue(creating)] == [True]
    (found,) = examine_queue(settings)
    assert (found.ok, found.found) == (True, "5 queues of SQS in us-east-1")
    assert examine_queue(load_settings({}, home=tmp_path)) == []
