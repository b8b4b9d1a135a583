"""What `trace up` gives its processes for services of AWS, and what `trace doctor` says of SQS."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.queues import sqs_settings
from tracelake.lite.doctor_queue import examine_queue
from tracelake.lite.network_ports import Ports
from tracelake.lite.plan import children
from tracelake.lite.provision import Dsns, ExternalDsns
from tracelake.runtime.process import PROCESSES
from tracelake.runtime.tls import TlsFiles
from tracelake.settings import load_settings

WITH_QUEUE = ["dispatcher", "worker", "sink", "runner"]
KEYS = {"AWS_ACCESS_KEY_ID": "KEY", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_PROFILE": "trace"}


@pytest.mark.parametrize("profile", ["pg", "sqs", "kms"])
def test_only_processes_with_a_queue_get_it_and_credentials_only_for_services_of_aws(
    profile: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    given = {
        "pg": {},
        "sqs": {"TRACE_QUEUE__BACKEND": "sqs", "TRACE_QUEUE__PREFIX": "prod-"},
        "kms": {"TRACE_TOKENS__SIGNER": "kms"},
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
    assert keyed == {"pg": set(), "sqs": set(WITH_QUEUE), "kms": {"dispatcher"}}[profile]


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
