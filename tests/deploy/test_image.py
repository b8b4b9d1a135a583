"""The Dockerfile as text, and its two scripts as processes: images cannot be built here. 3 s."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from prometheus_client import start_http_server

from deploy.aws.services import FOLDERS, METRICS_PORT, USER
from tests.support import ROOT
from tests.support.aws.stack import Stack, containers
from tracelake.lite.network_ports import free_port

TEXT = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
LINES = [line.split(None, 1) for line in TEXT.splitlines() if line and not line.startswith("#")]
START, HEALTH = ROOT / "deploy" / "image" / "start", ROOT / "deploy" / "image" / "health"


def of(instruction: str) -> list[str]:
    return [rest for name, rest in LINES if name == instruction]


def test_it_has_two_stages_whose_images_are_pinned_by_a_tag_and_no_digest() -> None:
    stages = of("FROM")
    assert len(stages) == 2
    assert all(re.match(r"python:3[.]1[1-3]-slim-\w+( AS build)?$", stage) for stage in stages)
    runs = " ".join(of("RUN"))
    assert runs.count("--require-hashes") == 2
    assert "--no-build-isolation ." in runs


def test_the_last_stage_runs_as_nobody_else_and_holds_no_compiler_and_no_source() -> None:
    last = TEXT[TEXT.rindex("FROM ") :]
    assert of("USER") == [USER]
    assert "uid 10001" in last
    assert re.findall(r"^COPY (.+)$", last, re.MULTILINE) == [
        "--from=build /opt/venv /opt/venv",
        "deploy /opt/trace/deploy",
    ]
    assert "apt-get" not in TEXT
    assert set(json.loads(of("VOLUME")[0])) == set(FOLDERS.values())


def test_what_it_copies_is_in_its_context_and_nothing_else_is() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert ignored[0] == "*"
    kept = {line[1:] for line in ignored if line.startswith("!")}
    copied = {name for line in of("COPY") if "--from" not in line for name in line.split()[:-1]}
    assert copied == kept
    assert all((ROOT / name).exists() for name in kept)


def test_the_health_check_of_the_image_and_of_the_services_are_the_same_file() -> None:
    (check,) = of("HEALTHCHECK")
    command = json.loads(check[check.index("[") :])
    assert command == ["/opt/trace/deploy/image/health"]
    assert json.loads(of("ENTRYPOINT")[0]) == ["/opt/trace/deploy/image/start"]
    assert f"TRACE_METRICS__PORT={METRICS_PORT}" in TEXT
    for name, container, _ in containers(Stack.of()):
        if name != "setup":
            assert container["HealthCheck"]["Command"] == ["CMD", *command]
    assert all(os.access(path, os.X_OK) for path in (START, HEALTH))


def test_a_process_that_answers_is_healthy_and_one_that_does_not_is_not() -> None:
    port = free_port()
    env = {"PATH": os.defpath, "TRACE_METRICS__PORT": str(port)}
    argv = [sys.executable, str(HEALTH)]
    assert subprocess.run(argv, env=env, capture_output=True, check=False).returncode != 0
    server, thread = start_http_server(port, "127.0.0.1")
    try:
        assert subprocess.run(argv, env=env, check=False).returncode == 0
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_the_start_writes_certificates_for_itself_alone_and_takes_them_out_of_the_environment(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "tls").mkdir()
    (tmp_path / "bin" / "trace").symlink_to("/usr/bin/env")  # shows what the process would get
    given = {"TLS_CA": "-----CA\n%s\\n-----", "TLS_CERT": "CERT\n", "TLS_KEY": "KEY"}
    env = {"PATH": f"{tmp_path / 'bin'}:{os.defpath}", "TLS_FOLDER": str(tmp_path / "tls"), **given}
    ran = subprocess.run([START], env=env, capture_output=True, text=True, check=True)
    shown = dict(line.split("=", 1) for line in ran.stdout.splitlines() if "=" in line)
    assert not shown.keys() & given.keys()
    for setting, name in (("CA", "TLS_CA"), ("CERT", "TLS_CERT"), ("KEY", "TLS_KEY")):
        path = Path(shown[f"TRACE_TLS__{setting}"])
        assert path.read_text(encoding="utf-8") == given[name]
        assert path.stat().st_mode & 0o777 == 0o600
