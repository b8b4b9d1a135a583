"""A secret of the environment is the one that a DAG names, is the worker's alone, and is never shown."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from tracelake.cli.app import app
from tracelake.domain.dag.read_source import SECRET
from tracelake.errors import SecretsUnavailable, SettingsError, WorkFailed
from tracelake.lite.network_ports import Ports
from tracelake.lite.plan import children
from tracelake.lite.provision import Dsns
from tracelake.runtime.process import PROCESSES
from tracelake.runtime.redact import RECENT, redacting, redactor
from tracelake.runtime.tls import TlsFiles
from tracelake.settings import leaves_of, load_settings, settings_from_document, shown, to_document
from tracelake.settings.secrets.jobs import variable_of
from tracelake.worker.run_task import secrets_of_job

VALUE: Final = "hush-5f3a9c"
NOWHERE: Final = Path(tempfile.gettempdir()) / "no-such-home"
KEY: Final = """-----BEGIN PRIVATE KEY-----
bW9vbmxpdA/harbour+77be01==
-----END PRIVATE KEY-----
"""


@pytest.mark.parametrize(
    "value", ["123456", "true or false", '{"a": "b"}', '["a", "b"]', " hush 7% ", "pä\"ss'wörd\\", KEY]
)
def test_a_secret_is_its_text_to_the_letter_also_in_the_worker(value: str, tmp_path: Path) -> None:
    settings = load_settings({"TRACE_SECRETS__API_KEY": value}, home=tmp_path)
    again = settings_from_document(to_document(settings))
    for item in (settings, again):
        assert dict(secrets_of_job(["API_KEY"], item.secrets)) == {"API_KEY": value}


@settings(deadline=None, derandomize=True, database=None)
@given(st.text("aZ9_", max_size=9).map("k{}".format).filter(SECRET.pattern.fullmatch))
def test_every_name_that_a_dag_may_say_can_be_set_and_capitals_make_no_difference(name: str) -> None:
    settings = load_settings({variable_of(name): VALUE}, home=NOWHERE)
    for spelt in (name, name.lower(), name.upper()):
        assert dict(secrets_of_job([spelt], settings.secrets)) == {spelt: VALUE}


def test_a_task_gets_those_that_its_job_names_and_no_others(tmp_path: Path) -> None:
    settings = load_settings({"TRACE_SECRETS__ONE": "hush-one", "TRACE_SECRETS__TWO": "hush-two"}, home=tmp_path)
    given_secrets = secrets_of_job(["ONE"], settings.secrets)
    assert dict(given_secrets) == {"ONE": "hush-one"}
    assert "TWO" not in given_secrets
    with pytest.raises(KeyError, match="this task has no secret 'TWO': does the job name it"):
        given_secrets["TWO"]
    assert repr(given_secrets) == f"{given_secrets}" == "Secrets(ONE)"
    assert dict(secrets_of_job([], settings.secrets)) == {}


def test_all_that_a_worker_does_not_have_is_named_with_the_variables_that_set_it(tmp_path: Path) -> None:
    settings = load_settings({"TRACE_SECRETS__ONE": "hush-one"}, home=tmp_path)
    with pytest.raises(WorkFailed, match="this worker has no secret two, THREE") as refused:
        secrets_of_job(["two", "ONE", "THREE"], settings.secrets)
    assert "TRACE_SECRETS__TWO, TRACE_SECRETS__THREE" in str(refused.value.hint)
    assert not refused.value.retryable


@pytest.mark.parametrize(
    ("env", "file", "where", "said"),
    [
        ({"TRACE_SECRETS__API_KEY": ""}, "", "secrets.api_key", "6 characters or more"),
        ({"TRACE_SECRETS__API_KEY": "       "}, "", "secrets.api_key", "6 characters or more"),
        ({"TRACE_SECRETS__API_KEY": "hush"}, "", "secrets.api_key", "6 characters or more"),
        ({"TRACE_SECRETS__api_key": VALUE}, "", "TRACE_SECRETS__api_key", "there is no setting"),
        ({"TRACE_SECRETS__A__B": VALUE}, "", "TRACE_SECRETS__A__B", "there is no setting"),
        ({"TRACE_SECRETS": '{"a": "hush-1"}'}, "", "TRACE_SECRETS", "there is no setting"),
        ({"TRACE_SECRETS__9": VALUE}, "", "secrets", "'9' cannot be a name"),
        ({}, f'[secrets]\napi_key = "{VALUE}"\n', "trace.toml", "is a secret, and every process"),
        ({}, f'secrets = "{VALUE}"\n', "secrets", "secrets: "),
        ({}, f'[secrets.api_key]\nvalue = "{VALUE}"\n', "trace.toml", "is a secret, and every process"),
    ],
)
def test_an_invalid_secret_or_one_in_a_file_is_refused_and_not_repeated(
    env: dict[str, str], file: str, where: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "trace.toml").write_text(file)
    with pytest.raises(SettingsError, match=re.escape(said)) as refused:
        load_settings(env, home=tmp_path)
    assert str(refused.value.where).endswith(where)
    assert "hush" not in json.dumps(refused.value.as_dict())


def test_a_secret_is_masked_wherever_settings_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = {"TRACE_SECRETS__API_KEY": VALUE}
    settings = load_settings(env, home=tmp_path)
    assert VALUE not in repr(settings)
    assert {leaf.path: shown(settings, leaf) for leaf in leaves_of(settings)}["secrets.api_key"] == "********"
    monkeypatch.setenv("TRACE_SECRETS__API_KEY", VALUE)
    for more in ([], ["--json"]):
        said = CliRunner().invoke(app, ["config", "show", "--home", str(tmp_path), *more])
        assert said.exit_code == 0
        assert "TRACE_SECRETS__API_KEY" in said.output
        assert VALUE not in said.output


@pytest.mark.parametrize(
    "secret", [KEY, "a/b+77be01==", 'it\'s "so" 77be01', "it's-77be01", 'so "77be01"', "back\\77be01", "\x1bé 77be01"]
)
@pytest.mark.parametrize(
    "spell",
    [
        str,
        repr,
        json.dumps,
        quote,
        quote_plus,
        lambda text: json.dumps(repr(text)),
        lambda text: quote(text, ""),
        lambda text: repr(f'no "user" for {text}'),
        lambda text: repr(f"it's not {text}"),
    ],
)
def test_a_secret_is_redacted_in_every_spelling(secret: str, spell: Callable[[str], str], tmp_path: Path) -> None:
    redact = redactor(load_settings({"TRACE_SECRETS__API_KEY": secret}, home=tmp_path))
    assert "77be01" not in redact(f"cannot use {spell(secret)}, try again")


def test_each_line_of_a_secret_is_redacted_too(tmp_path: Path) -> None:
    redact = redactor(load_settings({"TRACE_SECRETS__PRIVATE_KEY": KEY}, home=tmp_path))
    assert redact("not Base64: bW9vbmxpdA/harbour+77be01==") == "not Base64: ***"


def test_only_the_worker_gets_them(tmp_path: Path) -> None:
    settings = load_settings({"TRACE_SECRETS__API_KEY": VALUE}, home=tmp_path)
    files = TlsFiles(ca=tmp_path / "ca", cert=tmp_path / "cert", key=tmp_path / "key")
    dsns = Dsns(*["postgresql://u:p@h/d"] * 5)
    made = children(
        PROCESSES, settings, ports=Ports(*range(9)), tls=files, dsns=dsns, token_file=tmp_path.joinpath, issuer="PEM"
    )
    documents = {child.name: child.launch().stdin or b"" for child in made}
    assert [name for name, document in documents.items() if VALUE.encode() in document] == ["worker"]


def test_secrets_of_claims_are_redacted_and_a_long_running_worker_keeps_only_the_last_of_them(tmp_path: Path) -> None:
    hide = redactor(load_settings({}, home=tmp_path))
    with redacting(["of-a-task-that-runs"]):
        for number in range(RECENT + 10):
            with redacting([f"brought-{number:05}"]):
                assert hide(f"brought-{number:05} of-a-task-that-runs") == "*** ***"
        assert hide("of-a-task-that-runs") == "***", "however many others have come and gone"
        assert hide(f"brought-{RECENT + 9:05} and brought-00000") == "*** and brought-00000"
    assert hide("of-a-task-that-runs") == "***", "its last lines may come late"
    with redacting(["twice-at-a-time"]), redacting(["twice-at-a-time"]):
        pass
    assert hide("twice-at-a-time") == "***"


def test_a_secret_that_the_organisation_has_stored_is_used_before_that_of_the_settings(tmp_path: Path) -> None:
    known = load_settings({"TRACE_SECRETS__ONE": "hush-one", "TRACE_SECRETS__TWO": "hush-two"}, home=tmp_path).secrets
    assert dict(secrets_of_job(["ONE", "two"], known, {"one": "stored-one"})) == {
        "ONE": "stored-one",
        "two": "hush-two",
    }
    with pytest.raises(SecretsUnavailable, match="the key that encrypted the secret ONE"):
        secrets_of_job(["ONE"], known, {"one": None})
