"""The verbs of the command line against a running Dispatcher and Gateway, over TLS, as a user types them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from tests.support.dispatcher.control import PULL
from tests.support.operators import registered
from tests.support.systems.command_line import Running, Trace, deployed_task, fail
from tests.support.systems.gateway import DAG
from tracelake.lite.certificates import ensure_certificates
from tracelake.lite.child import ChildStatus
from tracelake.lite.home import Home, held
from tracelake.store.first_start import FIRST_ADMIN

pytestmark = pytest.mark.usefixtures("known_operators")


def test_status_names_tasks_that_have_failed_for_good(running: Running, trace: Trace, file: Path, home: Home) -> None:
    ready = [vars(ChildStatus(name, "ready")) for name in ("gateway", "dispatcher")]
    home.status.write_text(json.dumps({"processes": ready}))
    with held(home):
        task = deployed_task(running, trace, file)
        assert trace("status", "--json").json["failed_tasks"] == 0
        assert "failed permanently" not in trace("status").out
        running.do(fail(running.control, task))
        output = f"1 task has failed permanently within a day, the last of shop.clean: `trace why {task}`"
        assert output in trace("status").out
        assert trace("status", "--json").json["failed_tasks"] == 1


@pytest.mark.parametrize(
    "words", [("task", "list"), ("dag", "list"), ("why", str(uuid4())), ("outbox", "retry"), ("token",)]
)
def test_without_a_running_system_a_verb_says_what_to_do(trace: Trace, words: tuple[str, ...]) -> None:
    output = trace(*words)
    assert (output.code, output.out) == (1, "")
    assert "trace up" in output.err
    assert "Traceback" not in output.err
    assert trace(*words, "--json").json["error"]["hint"]


@pytest.mark.usefixtures("running")
def test_a_source_is_paused_and_resumed_and_both_read_as_done(trace: Trace, file: Path) -> None:
    job = "{name: follow, operator: pull, runtime: ecs_platform, source: {kind: always_on}}"
    file.write_text(f"name: feed\njobs:\n  - {job}\n")
    with registered(pull=PULL):
        assert trace("dag", "deploy", str(file), "--activate").code == 0
    for verb, first, second in (
        ("pause", "is paused; `trace source resume` resumes it", "was paused already; nothing changed"),
        ("resume", "is resumed", "was not paused; nothing changed"),
    ):
        assert trace("source", verb, "feed", "follow").out == f"feed.follow {first}\n"
        assert trace("source", verb, "feed", "follow").out == f"feed.follow {second}\n"


@pytest.mark.usefixtures("running")
def test_a_role_that_is_not_there_is_refused_where_it_is_named(trace: Trace, file: Path, state_db: str) -> None:
    file.write_text(DAG.replace("{job: clean}", "{job: clean, read_roles: [finanec]}"))
    output = trace("dag", "validate", str(file), at_home=False)
    assert (output.code, "not checked, line 13: there is no role 'finanec'" in output.out) == (0, True)
    with psycopg.connect(state_db) as connection:
        connection.execute("INSERT INTO org_roles (org_id, slug, name) SELECT id, 'finance', 'f' FROM orgs")
    refused = trace("dag", "deploy", str(file))
    assert (refused.code, refused.out) == (1, "")
    assert refused.err.startswith(f"{file}:13:")
    assert "there is no role 'finanec' (did you mean finance?)" in refused.err
    file.write_text(file.read_text().replace("finanec", "finance"))
    assert trace("dag", "deploy", str(file)).code == 0


@pytest.mark.usefixtures("running")
def test_dead_outbox_entries_are_listed_and_retried(trace: Trace, state_db: str) -> None:
    assert "no entry is pending" in trace("outbox", "list").out
    with psycopg.connect(state_db) as connection:
        connection.execute(
            "INSERT INTO outbox (org_id, kind, payload, status, last_error, processed_at)"
            " SELECT id, 'enqueue_task', '{}', 'Failed', 'no such queue', now() FROM orgs WHERE slug = 'acme'"
        )
    listed = trace("outbox", "list", "--status", "failed")
    assert "no such queue" in listed.out
    assert "1 entries will be retried" in trace("outbox", "retry").out
    assert "no such entry" in trace("outbox", "retry", "1").out


@pytest.mark.usefixtures("running")
def test_a_token_is_for_its_user_and_the_settings_can_name_another_gateway(
    trace: Trace, home: Home, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    token = trace("token", "--subject", "acme|reader", "--days", "1").out.strip()
    ready = json.loads(home.ready.read_text())
    monkeypatch.setenv("TRACE_HOME", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("TRACE_CLIENT__GATEWAY_URL", ready["endpoints"]["gateway"])
    monkeypatch.setenv("TRACE_CLIENT__CA", ready["ca_file"])
    output = trace("dag", "list", at_home=False)
    assert (output.code, "TRACE_CLIENT__TOKEN" in output.err) == (1, True)
    monkeypatch.setenv("TRACE_CLIENT__TOKEN", token)
    assert trace("dag", "list", at_home=False).code == 0
    refused = trace("outbox", "list", at_home=False)
    assert (refused.code, "reader may not" in refused.err) == (1, True)
    assert token not in refused.err
    monkeypatch.delenv("TRACE_CLIENT__CA")
    untrusted = trace("dag", "list", at_home=False)
    assert (untrusted.code, "certificate" in untrusted.err) == (1, True)


def test_a_token_for_an_unknown_user_and_a_malformed_token_are_refused_by_name(
    running: Running, trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = trace("token", "--subject", "missing")
    assert (unknown.code, unknown.out) == (1, "")
    assert "a token for 'missing' would be refused" in unknown.err
    assert "its subject is no user of this system" in unknown.err
    assert trace("token", "--subject", "acme|reader", "--json").json["checked"] is True
    for token, reason in (("abc", "this is not a token"), ("a.b.c", "this is not a token")):
        monkeypatch.setenv("TRACE_CLIENT__TOKEN", token)
        output = trace("dag", "list")
        assert (output.code, reason in output.err, "trace token" in output.err) == (1, True, True), output.err
        assert "segments" not in output.err
    monkeypatch.delenv("TRACE_CLIENT__TOKEN")
    running.stop_gateway()
    unchecked = trace("token", "--subject", "missing")
    assert (unchecked.code, unchecked.out.count(".")) == (0, 2)
    assert "not checked" in unchecked.err


@pytest.mark.usefixtures("running")
def test_a_home_that_was_named_wins_over_the_gateway_in_the_environment(
    trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACE_CLIENT__GATEWAY_URL", "https://127.0.0.1:1")
    monkeypatch.setenv("TRACE_CLIENT__TOKEN", "of another system")
    monkeypatch.setenv("TRACE_CLIENT__CA", "/nowhere/ca.pem")
    output = trace("dag", "list")
    assert output.code == 0, output.err


def test_a_gateway_that_went_away_is_said_so(trace: Trace, home: Home) -> None:
    files = ensure_certificates(home.tls, datetime.now(UTC))
    gone = {"endpoints": {"gateway": "https://127.0.0.1:1"}, "ca_file": str(files.ca), "user_token": "x"}
    home.ready.write_text(json.dumps(gone))
    output = trace("task", "list")
    assert (output.code, "does not answer" in output.err, "trace status" in output.err) == (1, True, True)


@pytest.mark.parametrize(
    "words",
    [
        ("dag",),
        ("dag", "validate"),
        ("task",),
        ("task", "list"),
        ("outbox", "retry"),
        ("trigger",),
        ("why",),
        ("token",),
    ],
)
def test_every_verb_explains_itself(trace: Trace, words: tuple[str, ...]) -> None:
    output = trace(*words, "--help", at_home=False)
    assert output.code == 0
    assert "Usage: trace" in output.out


@pytest.mark.usefixtures("running")
def test_a_folder_is_built_pushed_and_listed_as_what_it_contains(
    trace: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = tmp_path / "My-Detector"
    code.mkdir()
    (code / "main.py").write_text("from trace_udf import udf\n\n@udf\ndef handler(task): ...\n")
    monkeypatch.chdir(tmp_path)
    built = trace("udf", "build", str(code), "--json", at_home=False).json
    assert (built["name"], built["kind"], built["file"]) == ("my_detector", "python", "my_detector.zip")
    pushed = trace("udf", "push", str(code), "--json").json
    assert (pushed["sha256"], pushed["status"]) == (built["sha256"], "Ready")
    again = trace("udf", "push", "my_detector.zip")
    assert (again.code, f'sha256: "{built["sha256"]}"' in again.out) == (0, True)
    (listed,) = trace("udf", "list", "--json").json["bundles"]
    assert (listed["id"], listed["created_by"]) == (pushed["id"], FIRST_ADMIN)
    assert built["sha256"] in trace("udf", "list").out
    refused = trace("udf", "push", "my_detector.zip", "--name", "other")
    assert (refused.code, "my_detector" in refused.err) == (1, True)


@pytest.mark.usefixtures("running")
def test_a_bundle_that_cannot_be_is_refused_before_anything_is_sent(trace: Trace, tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "readme.txt").write_text("nothing to run")
    output = trace("udf", "push", str(code))
    assert (output.code, "there is nothing to run at the root" in output.err, "--kind" in output.err) == (1, True, True)
    (code / "main.py").write_text("")
    (code / "link.py").symlink_to("/etc/passwd")
    assert "link.py is a link" in trace("udf", "push", str(code)).err
    assert "no such" in trace("udf", "push", str(tmp_path / "nowhere.zip")).err.lower()
    assert trace("udf", "list", "--json").json["bundles"] == []
