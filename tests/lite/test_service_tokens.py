"""Tokens of the services of `trace up`: each process has its own, and it is replaced while the process answers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.systems.trace_up import LIGHT, TraceUp, new_folder
from tests.support.waiting import wait_until
from tracelake.lite.network_ports import Ports
from tracelake.lite.plan import children
from tracelake.lite.provision import Dsns
from tracelake.runtime.process import PROCESSES
from tracelake.runtime.tls import TlsFiles
from tracelake.settings import load_settings


def verb(system: TraceUp, *words: str) -> Any:
    argv = [sys.executable, "-m", "tracelake", "service-token", *words, "--home", str(system.home), "--json"]
    done = subprocess.run(argv, env=system.env, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def tokens(system: TraceUp, service: str) -> list[dict[str, Any]]:
    return [row for row in verb(system, "list")["tokens"] if row["service"] == service]


@pytest.fixture
def system() -> Iterator[TraceUp]:
    for folder in new_folder():
        yield TraceUp(folder / "home", "--without", LIGHT)


def test_a_gateway_gets_a_new_token_while_it_answers_and_the_old_one_ends(system: TraceUp) -> None:
    file = system.home / "keys" / "services" / "gateway.token"
    with system.running():
        (old,) = tokens(system, "gateway")
        former = file.read_text()
        made = verb(system, "create", "gateway", "--name", "fresh", "--out", str(file))
        assert (made["token"], file.stat().st_mode & 0o777) == ("", 0o600)
        assert file.read_text() != former

        def is_used() -> bool:
            return any(row["last_used_at"] for row in tokens(system, "gateway") if row["name"] == "fresh")

        wait_until(is_used, "the Gateway uses its new token")
        assert verb(system, "revoke", old["id"])["id"] == old["id"]
        assert system.me()["role"] == "admin"
        shown = {"X-Trace-Worker-Token": former.strip()}
        assert system.get("dispatcher_internal", "/internal/v1/tasks", **shown).status_code == 401
        verb(system, "revoke", made["id"])
    with system.running():  # a start replaces tokens that were revoked
        assert system.me()["role"] == "admin"
        assert made["id"] not in {row["id"] for row in tokens(system, "gateway")}


def test_each_process_is_passed_its_own_token_alone(tmp_path: Path) -> None:
    settings = load_settings({"TRACE_IDENTITY__SERVICE_TOKEN": "of whoever runs `trace up`"}, home=tmp_path)
    files = TlsFiles(ca=tmp_path / "ca", cert=tmp_path / "cert", key=tmp_path / "key")
    made = children(
        PROCESSES,
        settings,
        ports=Ports(*range(9)),
        tls=files,
        dsns=Dsns(*["postgresql://u:p@h/d"] * 5),
        token_file=lambda name: tmp_path / "services" / f"{name}.token",
        issuer="PEM",
    )
    for child in made:
        identity = json.loads(child.launch().stdin or b"{}")["identity"]
        own = None if child.name == "dispatcher" else str(tmp_path / "services" / f"{child.name}.token")
        assert (identity.get("service_token_file"), identity.get("service_token")) == (own, None), child.name


def test_a_file_that_cannot_be_written_is_refused_before_a_token_is_made(tmp_path: Path) -> None:
    words = ["create", "sink", "--name", "a", "--out", "/nowhere/at/all"]
    argv = [sys.executable, "-m", "tracelake", "service-token", *words, "--home", str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, check=False)
    assert done.returncode == 1
    assert b"there is no folder /nowhere/at" in done.stderr
