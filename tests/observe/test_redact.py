"""Secrets of the settings are redacted from logs and errors."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Final

import pytest
import structlog

from tracelake.errors import SettingsError
from tracelake.runtime.logs import configure_logging
from tracelake.runtime.redact import INSTEAD, redactor
from tracelake.settings import LogSettings, Settings, load_settings
from tracelake.store.db import required

GIVEN: Final = {
    "TRACE_DATA__DSN": "postgresql://worker:pass%40word1@db.example:5432/trace",
    "TRACE_RPC_POOLS__MAIN__ENDPOINTS": "https://one.example/v3/0123456789abcdef two=https://me:secret77@two.example/?key=fedcba98",
    "TRACE_IDENTITY__SERVICE_TOKEN": 'a "quoted" token',
}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings(GIVEN, home=tmp_path)


@pytest.mark.parametrize(
    "secret",
    [
        "postgresql://worker:pass%40word1@db.example:5432/trace",
        "pass%40word1",
        "pass@word1",
        "0123456789abcdef",
        "https://one.example/v3/0123456789abcdef",
        "secret77",
        "fedcba98",
        'a "quoted" token',
        r"a \"quoted\" token",
    ],
)
def test_a_secret_and_every_secret_substring_is_redacted(settings: Settings, secret: str) -> None:
    assert redactor(settings)(f"cannot connect to {secret}, try again") == f"cannot connect to {INSTEAD}, try again"


@pytest.mark.parametrize("said", ["db.example:5432", "worker vm:17", "one.example does not answer", "trace", "v3", ""])
def test_what_is_no_secret_is_said_as_it_is(settings: Settings, said: str) -> None:
    assert redactor(settings)(said) == said


def test_a_line_of_the_log_holds_no_secret_also_in_a_stack_trace(settings: Settings) -> None:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        configure_logging("worker", LogSettings(), redactor(settings))
        try:
            int("pass@word1")
        except ValueError:
            structlog.get_logger().exception("task failed", url="https://one.example/v3/0123456789abcdef")
    structlog.reset_defaults()
    line = json.loads(out.getvalue())
    assert line["url"] == INSTEAD
    assert "pass@word1" not in out.getvalue()
    assert "ValueError" in line["exception"]


@pytest.mark.parametrize(
    "dsn", ["postgresql://u:pa ss%w@h/d", "postgresql://u:50%@h/d", "host=h password=hush", "mysql://u:hush@h/d"]
)
def test_an_address_that_a_driver_would_repeat_in_its_error_is_refused_and_not_repeated(
    dsn: str, tmp_path: Path
) -> None:
    loaded = load_settings({"TRACE_DATA__DSN": dsn}, home=tmp_path)
    with pytest.raises(SettingsError) as refused:
        required(loaded.data.dsn, "data.dsn")
    assert "data.dsn" in refused.value.message
    for secret in ("pa ss", "50%", "hush"):
        assert secret not in str(refused.value.as_dict())


@pytest.mark.parametrize("remote", ["sc://h:15002/;token=hush", "sc://h:15002/;use_ssl=true;TOKEN=hush", "sc://hush@h"])
def test_the_address_of_a_spark_server_which_people_see_holds_no_token(remote: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"spark\.remote_token"):
        load_settings({"TRACE_SPARK__REMOTE": remote}, home=tmp_path)


@pytest.mark.parametrize(
    ("remote", "url"),
    [
        ("sc://h:15002", "sc://h:15002/;token=hush77"),
        ("sc://h:15002/;use_ssl=true", "sc://h:15002/;use_ssl=true;token=hush77"),
    ],
)
def test_spark_is_given_its_token_with_the_address(remote: str, url: str, tmp_path: Path) -> None:
    given = {"TRACE_SPARK__REMOTE": remote, "TRACE_SPARK__REMOTE_TOKEN": "hush77"}
    assert load_settings(given, home=tmp_path).spark.remote_url == url
