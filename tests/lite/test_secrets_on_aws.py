"""Settings by reference: which process gets which, and what a start, a command and the doctor do with them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.aws.secrets_manager import created_secret
from tracelake.errors import SettingsError
from tracelake.lite.doctor.secrets import examine_secrets
from tracelake.lite.network_ports import Ports
from tracelake.lite.plan import children
from tracelake.lite.provision import Dsns
from tracelake.runtime.process import PROCESSES
from tracelake.runtime.tls import TlsFiles
from tracelake.settings import load_settings, references_in, to_document
from tracelake.wiring import with_secrets

HOLDERS = {
    "TRACE_SECRETS__API_KEY": {"worker"},
    "TRACE_RPC_POOLS__MAIN__ENDPOINTS": {"worker"},
    "TRACE_RPC_POOLS__MAIN__HEADERS": {"worker"},
    "TRACE_HOOK_SECRETS__GITHUB": {"dispatcher"},
    "TRACE_UDF__INVOKE_TOKEN": {"dispatcher", "runner"},
    "TRACE_SPARK__REMOTE_TOKEN": {"query", "worker", "sink"},
    "TRACE_OBJECTS__SECRET_ACCESS_KEY": {"dispatcher", "query", "worker", "sink"},
    "TRACE_CREDENTIALS__SECRET_ACCESS_KEY": {"dispatcher"},
    "TRACE_IDENTITY__SERVICE_TOKEN": set(),
}
BESIDE = {
    "TRACE_OBJECTS__SECRET_ACCESS_KEY": {"TRACE_OBJECTS__BACKEND": "s3", "TRACE_OBJECTS__ACCESS_KEY_ID": "k"},
    "TRACE_CREDENTIALS__SECRET_ACCESS_KEY": {"TRACE_CREDENTIALS__ACCESS_KEY_ID": "k"},
}


@pytest.mark.parametrize("variable", HOLDERS)
def test_only_processes_that_have_a_secret_get_its_reference_and_credentials(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "trace")
    settings = load_settings({variable: "aws-secret:x", **BESIDE.get(variable, {})}, home=tmp_path)
    made = children(
        PROCESSES,
        settings,
        ports=Ports(*range(9)),
        tls=TlsFiles(ca=tmp_path / "ca", cert=tmp_path / "cert", key=tmp_path / "key"),
        dsns=Dsns(*["postgresql://u:p@h/d"] * 5),
        token_file=tmp_path.joinpath,
        issuer="PEM",
    )
    launches = {child.name: child.launch() for child in made}
    assert {name for name, launch in launches.items() if b"aws-secret:x" in (launch.stdin or b"")} == HOLDERS[variable]
    assert {name for name, launch in launches.items() if "AWS_PROFILE" in launch.env} == HOLDERS[variable]


def test_a_value_is_checked_as_if_it_had_been_given(moto: str, tmp_path: Path) -> None:
    good, short = created_secret(moto, "0123456789abcdef"), created_secret(moto, "too-short")
    found = with_secrets(load_settings(on(moto, TRACE_HOOK_SECRETS__A=good), home=tmp_path))
    assert found.hook_secrets["a"].get_secret_value() == "0123456789abcdef"
    assert found.home == tmp_path
    with pytest.raises(SettingsError, match="16 characters") as refused:
        with_secrets(load_settings(on(moto, TRACE_HOOK_SECRETS__A=short), home=tmp_path))
    assert refused.value.where == "hook_secrets.a"
    assert "too-short" not in str(refused.value.as_dict())


def test_only_the_groups_that_are_named_are_fetched(moto: str, tmp_path: Path) -> None:
    dsn = created_secret(moto, "postgresql://h/d")
    settings = load_settings(on(moto, TRACE_STATE__DSN=dsn, TRACE_SECRETS__KEY="not/there"), home=tmp_path)
    found = with_secrets(settings, "state")
    assert found.state.dsn is not None
    assert found.state.dsn.get_secret_value() == "postgresql://h/d"
    assert set(references_in(found)) == {"secrets.key"}


@pytest.mark.parametrize("process", ["dispatcher", "worker"])
def test_a_process_whose_secret_is_missing_ends_and_names_the_setting(process: str, moto: str, tmp_path: Path) -> None:
    given = on(moto, TRACE_STATE__DSN="not/there", TRACE_SECRETS__KEY="not/there")
    document = to_document(load_settings(given, home=tmp_path))
    ended = trace(process, "--settings", "-", stdin=document)
    assert ended.returncode == 1
    assert "there is no secret not/there" in ended.stderr
    assert "state.dsn" in ended.stderr


def test_a_command_reads_a_database_by_reference(moto: str, state_db: str, tmp_path: Path) -> None:
    given = on(moto, TRACE_STATE__DSN=created_secret(moto, state_db))
    done = trace("db", "check", "--json", "--home", str(tmp_path), env=given)
    assert done.returncode == 0, done.stderr
    assert "state" in json.loads(done.stdout)


def test_the_doctor_names_each_setting_whose_secret_cannot_be_used(moto: str, tmp_path: Path) -> None:
    good, short = created_secret(moto, "0123456789abcdef"), created_secret(moto, "short")
    given = on(moto, TRACE_HOOK_SECRETS__A=good, TRACE_HOOK_SECRETS__B=short, TRACE_SECRETS__C="not/there")
    found = examine_secrets(load_settings(given, home=tmp_path))
    assert [finding.ok for finding in found] == [False, False]
    said = " ".join(finding.found for finding in found)
    assert "hook_secrets.b" in said
    assert "there is no secret not/there" in said
    (fine,) = examine_secrets(load_settings(on(moto, TRACE_HOOK_SECRETS__A=good), home=tmp_path))
    assert (fine.ok, fine.found) == (True, "1 settings from Secrets Manager in us-east-1")
    (malformed,) = examine_secrets(load_settings({"TRACE_STATE__DSN": "aws-secret:a b"}, home=tmp_path))
    assert "NAME#KEY" in str(malformed.fix)
    assert examine_secrets(load_settings({}, home=tmp_path)) == []


def on(moto: str, **names: str) -> dict[str, str]:
    references = {variable: f"aws-secret:{name}" for variable, name in names.items()}
    return {"TRACE_SECRETS_MANAGER__ENDPOINT": moto, **references}


def trace(*words: str, stdin: str = "", env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tracelake", *words],
        input=stdin,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
