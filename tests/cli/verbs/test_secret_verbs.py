"""`trace secret` as an admin types it: a value comes from a prompt, standard input or a file, never from a word."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from tests.support.systems.command_line import Running, Trace
from tracelake.domain.access.seal import Seal

pytestmark = pytest.mark.usefixtures("running", "known_operators")

VALUE = "value-5f3a9c\tof two\nlines"
DAG = """
name: desk
jobs:
  - {name: go, operator: noop, runtime: dispatcher, source: {kind: webhook, scheme: hmac, secret: SHOP_KEY}}
  - name: load
    operator: python
    runtime: ecs_platform
    inputs: [{from: {job: go}}]
    config: {function: "somewhere:load"}
    secrets: [API_KEY]
"""


def stored(running: Running) -> list[str | None]:
    rows = running.do(running.control.pool.fetch("SELECT * FROM org_secrets ORDER BY name"))
    seal: Seal = running.control.seal
    return [seal.open(row["key_id"], row["sealed"], str(row["org_id"]), row["kind"], row["name"]) for row in rows]


def test_a_value_is_read_from_standard_input_without_its_last_newline(
    trace: Trace, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(f"{VALUE}\n".encode()), encoding="utf-8"))
    output = trace("secret", "set", "API_KEY", "--json")
    assert output.json == {"kind": "job", "name": "api_key", "created": True}
    assert stored(running) == [VALUE]
    assert "5f3a9c" not in output.out + output.err


def test_a_value_is_read_from_a_file(trace: Trace, running: Running, tmp_path: Path) -> None:
    file = tmp_path / "value"
    file.write_text(VALUE)
    assert trace("secret", "set", "api_key", "--from-file", str(file)).out.startswith(
        "secret api_key of kind job is set"
    )
    assert trace("secret", "set", "api_key", "--from-file", str(file)).out.strip().endswith("has a new value")
    assert stored(running) == [VALUE]


@pytest.mark.parametrize(("content", "said"), [(None, "No such file"), (b"\xff\xfe", "it is not UTF-8")])
def test_a_file_that_cannot_be_read_is_an_error(trace: Trace, tmp_path: Path, content: bytes | None, said: str) -> None:
    file = tmp_path / "value"
    if content is not None:
        file.write_bytes(content)
    output = trace("secret", "set", "api_key", "--from-file", str(file))
    assert output.code == 1
    assert said in output.err


def test_a_name_that_cannot_be_one_and_an_empty_value_are_errors(
    trace: Trace, running: Running, tmp_path: Path
) -> None:
    cases = [("Bad Name", "a-value", "'Bad Name' is no name of a secret"), ("api_key", "", "the value is empty")]
    for name, value, said in cases:
        (tmp_path / "value").write_text(value)
        output = trace("secret", "set", name, "--from-file", str(tmp_path / "value"))
        assert (output.code, said in output.err) == (1, True), output.err
    assert stored(running) == []


def test_a_value_is_no_word_of_the_command(trace: Trace) -> None:
    """Words of a command are visible to other users of the machine, and stay in the history of a shell."""
    output = trace("secret", "set", "api_key", "a-value-on-the-command-line")
    assert output.code == 2
    for option in ("--value", "-v"):
        assert trace("secret", "set", "api_key", option, "a-value-on-the-command-line").code == 2


def test_secrets_are_listed_with_their_jobs_and_removed(trace: Trace, running: Running, tmp_path: Path) -> None:
    assert trace("secret", "list").out.strip() == "there are none"
    (tmp_path / "desk.yaml").write_text(DAG)
    assert trace("dag", "deploy", str(tmp_path / "desk.yaml"), "--activate").code == 0
    (tmp_path / "value").write_text("a-value-of-20-letters")
    for name, kind in (("api_key", "job"), ("SHOP_KEY", "webhook"), ("spare", "job")):
        assert trace("secret", "set", name, "--kind", kind, "--from-file", str(tmp_path / "value")).code == 0
    out = trace("secret", "list").out
    assert [word in out for word in ("api_key", "desk.load", "shop_key", "webhook", "desk.go")] == [True] * 5
    rows = trace("secret", "list", "--json").json["secrets"]
    assert [(row["kind"], row["name"], row["used_by"], row["readable"]) for row in rows] == [
        ("job", "api_key", ["desk.load"], True),
        ("job", "spare", [], True),
        ("webhook", "shop_key", ["desk.go"], True),
    ]
    refused = trace("secret", "remove", "API_KEY")
    assert (refused.code, "is used by desk.load" in refused.err) == (1, True)
    assert trace("secret", "remove", "api_key", "--force", "--json").json["used_by"] == ["desk.load"]
    assert trace("secret", "remove", "spare").out.strip() == "secret spare of kind job is removed"
    assert trace("secret", "remove", "spare").code == 1
    assert trace("secret", "remove", "shop_key", "--kind", "webhook", "--force").code == 0
    assert stored(running) == []
