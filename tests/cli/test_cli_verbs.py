"""The verbs of the command line against a running Dispatcher and Gateway, over TLS, as a user types them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID, uuid4

import psycopg
import pytest

from tests.support.dispatcher.control import PULL
from tests.support.dispatcher.job_chain import claimed, completion, drained
from tests.support.operators import registered
from tests.support.systems.command_line import Running, Trace, fail
from tests.support.systems.gateway import DAG
from tests.support.waiting import until
from tracelake.dispatcher.control import Control
from tracelake.lite.certificates import ensure_certificates
from tracelake.lite.child import ChildStatus
from tracelake.lite.home import Home, held
from tracelake.store.first_start import FIRST_ADMIN

pytestmark = pytest.mark.usefixtures("known_operators")


def a_task(running: Running, trace: Trace, file: Path) -> UUID:
    assert trace("dag", "deploy", str(file), "--activate").code == 0
    assert trace("trigger", "shop", "fetch", "--range", "0-9").code == 0
    running.do(drained(running.control))
    return UUID(trace("task", "list", "--json").json["tasks"][0]["id"])


def test_status_names_tasks_that_have_failed_for_good(running: Running, trace: Trace, file: Path, home: Home) -> None:
    ready = [vars(ChildStatus(name, "ready")) for name in ("gateway", "dispatcher")]
    home.status.write_text(json.dumps({"processes": ready}))
    with held(home):
        task = a_task(running, trace, file)
        assert trace("status", "--json").json["failed_tasks"] == 0
        assert "failed permanently" not in trace("status").out
        running.do(fail(running.control, task))
        output = f"1 task has failed permanently within a day, the last of shop.clean: `trace why {task}`"
        assert output in trace("status").out
        assert trace("status", "--json").json["failed_tasks"] == 1


def test_a_valid_dag_is_said_to_be_valid_without_a_running_system(trace: Trace, file: Path) -> None:
    output = trace("dag", "validate", str(file), at_home=False)
    assert (output.code, output.err) == (0, "")
    assert "DAG shop is valid: 2 jobs" in output.out
    assert trace("dag", "validate", str(file), "--json", at_home=False).json["valid"] is True


def test_every_problem_of_a_dag_is_a_line_that_an_editor_can_jump_to(trace: Trace, file: Path) -> None:
    file.write_text(DAG.replace("job: fetch}}", "job: fetchr}}").replace("runtime: dispatcher", "runtime: dispatchr"))
    output = trace("dag", "validate", str(file), at_home=False)
    assert (output.code, output.out) == (1, "")
    lines = output.err.splitlines()
    assert lines[0].startswith(f"{file}:2:21: defaults.runtime: there is no runtime 'dispatchr' (")
    assert any(
        line.startswith(f"{file}:9:") and "fetchr" in line and line.endswith("(did you mean fetch?)") for line in lines
    ), lines
    refused = trace("dag", "validate", str(file), "--json", at_home=False)
    assert refused.code == 1
    assert len(refused.json["error"]["problems"]) == len(lines)


def test_a_dataset_of_another_dag_is_left_to_the_running_system(trace: Trace, file: Path) -> None:
    file.write_text(DAG.replace("{from: {job: fetch}}", "{from: {dataset: elsewhere}}"))
    output = trace("dag", "validate", str(file), at_home=False)
    assert output.code == 0
    assert "not checked, line 9" in output.out


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
def test_a_dag_is_deployed_activated_listed_and_shown(trace: Trace, file: Path) -> None:
    assert "no DAG is deployed yet" in trace("dag", "list").out
    output = trace("dag", "deploy", str(file))
    assert "deployed (2 jobs)" in output.out
    version = trace("dag", "show", "shop", "--json").json["versions"][0]["dag_version_id"]
    assert f"trace dag activate shop {version}" in output.out
    assert "nothing changed" in trace("dag", "deploy", str(file)).out
    assert "is active" in trace("dag", "activate", "shop", version).out
    assert "was active already" in trace("dag", "activate", "shop", version).out
    assert version in trace("dag", "list").out
    assert "shop_orders" in trace("dag", "show", "shop").out
    assert trace("dag", "show", "shop", "--yaml").out == DAG
    assert trace("dag", "show", "nothing").code == 1
    names = [item["name"] for item in trace("dataset", "list", "--json").json["datasets"]]
    assert names == ["shop_clean", "shop_orders"]
    assert "none yet" in trace("dataset", "show", "shop_clean").out


@pytest.mark.usefixtures("running")
def test_what_the_running_system_refuses_in_a_dag_is_printed_line_by_line(trace: Trace, file: Path) -> None:
    file.write_text(DAG.replace("{from: {job: fetch}}", "{from: {dataset: elsewhere}}"))
    output = trace("dag", "deploy", str(file))
    assert (output.code, output.out) == (1, "")
    assert output.err.startswith(f"{file}:9:")
    assert "elsewhere" in output.err
    file.write_text("jobs: []\n")
    assert "`name` is required" in trace("dag", "deploy", str(file)).err


@pytest.mark.usefixtures("running")
def test_a_field_without_effect_is_a_warning_in_validate_and_in_deploy(trace: Trace, file: Path) -> None:
    file.write_text(DAG.replace("    runtime: ecs_platform\n", "    runtime: ecs_platform\n    replay: true\n"))
    line = f"{file}:11:5: warning: jobs[1].replay: `replay` has no effect"
    for verb in ("validate", "deploy", "deploy"):
        output = trace("dag", verb, str(file), at_home=verb != "validate")
        assert (output.code, output.err.startswith(line)) == (0, True), output.err
    (warning,) = trace("dag", "validate", str(file), "--json", at_home=False).json["warnings"]
    assert (warning["field"], warning["code"]) == ("jobs[1].replay", "no_effect")
    assert trace("dag", "deploy", str(file), "--json").json["deployed"]["warnings"] == [warning]
    file.write_text(file.read_text().replace("job: fetch}}", "job: fetchr}}"))
    for verb in ("validate", "deploy"):
        output = trace("dag", verb, str(file), at_home=verb != "validate")
        assert (output.code, line in output.err, "fetchr" in output.err) == (1, True, True), output.err


@pytest.mark.parametrize("verb", ["validate", "deploy"])
def test_a_missing_folder_does_not_suppress_other_errors(trace: Trace, file: Path, verb: str) -> None:
    """Without a running system too: nothing is pushed of a DAG that cannot be deployed."""
    wrong = DAG.replace("runtime: dispatcher", "runtime: dispatchr").replace("job: clean}", "job: cleaner}")
    inputs = "inputs: [{from: {job: %s}}]"
    own = f"  - {{name: own, operator: udf, runtime: lambda, udf: {{folder: nowhere}}, {inputs % 'clean'}}}\n"
    config = "config: {abi_file: no.json, events: [swap]}"
    seen = f"  - {{name: seen, operator: evm_decode, {config}, {inputs % 'x'}}}\n"
    file.write_text(wrong.replace("publish:\n", own + seen + "publish:\n"))
    output = trace("dag", verb, str(file), at_home=verb == "deploy")
    lines = output.err.splitlines()
    assert (output.code, len(lines)) == (1, 5), output.err
    found = {2: "dispatchr", 11: "no such folder", 12: "no.json", 15: "cleaner"}
    for number, words in (*found.items(), (12, "no job 'x'")):
        assert any(line.startswith(f"{file}:{number}:") and words in line for line in lines), (number, words, lines)
    assert trace("dag", verb, str(file), "--json", at_home=verb == "deploy").json["error"]["problems"]


@pytest.mark.usefixtures("running")
def test_an_abi_file_is_deployed_with_its_dag_and_a_bad_one_is_refused_at_its_line(trace: Trace, file: Path) -> None:
    config = "    config: {events: [swap], abi_file: swaps.json}\n"
    file.write_text(DAG.replace("    operator: work\n", "    operator: evm_decode\n" + config))
    abi = file.with_name("swaps.json")
    abi.write_text('[{"type": "event", "name": "Swap", "inputs": []}, {"type": "function", "name": "swap"}]')
    assert trace("dag", "validate", str(file), at_home=False).code == 0
    assert trace("dag", "deploy", str(file)).code == 0
    assert 'abi: \'[{"type":"event","name":"Swap","inputs":[]}]\'' in trace("dag", "show", "shop", "--yaml").out
    for wrong, reason in {
        "[" * 5_000: "this is not JSON",
        '[{"type": "event", "name": "Swap", "inputs": [{"type": "uint' + "9" * 5_000 + '"}]}]': "there is no type",
    }.items():
        abi.write_text(wrong)
        for verb in ("validate", "deploy"):
            output = trace("dag", verb, str(file), at_home=verb == "deploy")
            assert (output.code, output.out) == (1, "")
            assert output.err.startswith(f"{file}:9:")
            assert reason in output.err
    abi.write_text("[]")
    output = trace("dag", "deploy", str(file))
    assert output.err.startswith(f"{file}:9:")
    assert "the ABI has no event 'swap'" in output.err


def test_a_task_is_followed_from_trigger_to_its_end(running: Running, trace: Trace, file: Path) -> None:
    assert "no tasks yet" in trace("task", "list").out
    task = a_task(running, trace, file)
    assert str(task) in trace("task", "list", "--status", "queued", "--job", "clean").out
    assert "no such task" in trace("task", "list", "--status", "Failed").out
    waits = trace("why", str(task))
    assert waits.code == 0
    assert "waits_for_worker" in waits.out
    assert trace("why", "shop_clean", "0-9", "--json").json["stopped"]["rule"] == "waits_for_worker"

    running.do(fail(running.control, task))
    shown = trace("task", "show", str(task))
    assert "the disk [1] is full\\x1b]0;owned\\x07\\u202e" in shown.out
    for words in (("task", "list"), ("task", "show", str(task)), ("why", str(task))):
        assert not set("\x1b\x07\u202e") & set(trace(*words).out)
    assert "partition:0-9" in shown.out
    assert "attempt 2" in trace("task", "retry", str(task)).out
    assert trace("task", "retry", str(task)).code == 1
    assert trace("task", "cancel", str(task), "--reason", "enough").out == "canceled\n"
    assert "already" in trace("task", "cancel", str(task)).out
    assert trace("task", "show", str(task), "--json").json["cancel_reason"] == "enough"


async def end_when_queued(control: Control, **result: object) -> None:
    """Drain until a task is queued, and end it."""

    async def queued() -> UUID | None:
        await drained(control)
        found: UUID | None = await control.pool.fetchval("SELECT id FROM tasks WHERE status = 'Queued'")
        return found

    task, claims = await claimed(control, await until(queued, "a task is queued"))
    await control.completer()(completion(task, **result), claims)


def test_a_trigger_waits_for_its_tasks_and_its_exit_code_says_how_they_ended(
    running: Running, trace: Trace, file: Path
) -> None:
    assert trace("dag", "deploy", str(file), "--activate").code == 0
    with ThreadPoolExecutor(1) as pool:
        for words, result, expected in (
            (("--range", "0-9"), {}, (0, "1 of 1 tasks completed")),
            (("--range", "10-19", "--downstream"), {}, (0, "1 of 1 tasks completed")),
            (("--range", "20-29"), {"status": "Failed", "error_message": "no [1]", "retryable": False}, (1, "no [1]")),
        ):
            ending = pool.submit(running.do, end_when_queued(running.control, **result))
            output = trace("trigger", "shop", "fetch", "--wait", *words)
            ending.result()
            assert (output.code, expected[1] in output.out) == (expected[0], True), output
        ending = pool.submit(running.do, end_when_queued(running.control))
        found = trace("trigger", "shop", "fetch", "--range", "30-39", "--wait", "--json")
        ending.result()
    assert (found.code, found.json["ended"], found.json["succeeded"], found.json["completed"]) == (0, True, True, 1)
    again = trace("trigger", "shop", "fetch", "--range", "30-39", "--wait", "--request-id", found.json["request_id"])
    assert (again.code, "this request was made before" in again.out) == (0, True)
    for option in ("--downstream", "--timeout=5"):
        alone = trace("trigger", "shop", "fetch", option)
        assert (alone.code, "give --wait too" in alone.err) == (1, True)


def test_a_trigger_whose_time_is_over_leaves_its_tasks_and_says_how_to_wait_again(
    running: Running, trace: Trace, file: Path
) -> None:
    assert trace("dag", "deploy", str(file), "--activate").code == 0
    command = "trigger", "shop", "fetch", "--range", "0-9", "--wait"
    output = trace(*command, "--timeout", "0")
    assert output.code == 124
    assert "the time is over: 0 of 0 tasks have ended, 0 running; 1 events to be routed" in output.out
    request = output.out.partition("--request-id ")[2].partition("`")[0]
    later = trace(*command, "--timeout", "0", "--request-id", request, "--json")
    assert (later.code, later.json["ended"], later.json["succeeded"]) == (124, False, False)
    running.do(end_when_queued(running.control))
    assert trace(*command, "--request-id", request).code == 0


def test_ctrl_c_ends_the_wait_for_a_trigger_and_not_its_tasks(
    running: Running, trace: Trace, file: Path, home: Home
) -> None:
    assert trace("dag", "deploy", str(file), "--activate").code == 0
    argv = [sys.executable, "-m", "tracelake", "trigger", "shop", "fetch", "--wait", "--home", str(home.root)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert "so far" in process.stderr.readline(), "it waits"
        process.send_signal(signal.SIGINT)
        output = process.stdout.read()
    assert process.returncode == 130
    request = output.partition("the tasks go on; the same command with `--wait --request-id ")[2].partition("`")[0]
    running.do(end_when_queued(running.control))
    assert trace("trigger", "shop", "fetch", "--wait", "--request-id", request).code == 0


def test_a_list_shows_first_lines_and_the_beginning_of_an_id_is_enough(
    running: Running, trace: Trace, file: Path
) -> None:
    task = str(a_task(running, trace, file))
    running.do(fail(running.control, UUID(task)))
    listed = trace("task", "list").out
    assert "the disk [1] is full\\x1b]0;owned\\x07\\u202e ..." in listed
    assert "second line" not in listed
    assert "second line" in trace("task", "show", task[:13]).out
    for words in (("task", "logs"), ("why",)):
        assert trace(*words, task[:30]).code == 0, words
    missing = trace("task", "show", "ffffffff-")
    assert (missing.code, "no task has an id that begins with ffffffff-" in missing.err) == (1, True)
    wrong = trace("task", "cancel", "shop")
    assert (wrong.code, "'shop' is not the id of a task" in wrong.err) == (1, True)
    assert trace("trigger", "shop", "fetch", "--range", "10-19").code == 0
    running.do(drained(running.control))
    several = trace("task", "retry", task[:2])
    assert (several.code, task in several.err, "give a longer prefix" in several.err) == (1, True, True)
    assert trace("task", "retry", task).code == 0


def test_why_of_a_dataset_sums_up_how_it_stands(running: Running, trace: Trace, file: Path) -> None:
    assert trace("dag", "deploy", str(file)).code == 0
    version = trace("dag", "show", "shop", "--json").json["versions"][0]["dag_version_id"]
    uuid = trace("datasets", "list", "--json").json["datasets"][0]["dataset_uuid"]
    assert trace("why", uuid, "--json").json["stopped"]["rule"] == "not_active"
    assert trace("dag", "activate", "shop", version).code == 0
    empty = trace("why", "shop_clean", "--json").json
    assert (empty["stopped"]["rule"], "`trace why shop_orders`" in empty["stopped"]["hint"]) == ("no_event", True)
    assert trace("why", "shop_orders", "--json").json["stopped"]["rule"] == "source_has_not_made_it"
    task = a_task(running, trace, file)
    explained = trace("why", "shop_orders", "--json").json
    assert (explained["stopped"], "its last event, of partition:0-9, came" in explained["verdict"]) == (None, True)
    waiting = trace("why", "shop_clean")
    assert (waiting.code, "It has no rows yet. 1 task of shop.clean is queued." in waiting.out) == (0, True)
    running.do(fail(running.control, task))
    failed = trace("why", "shop_clean")
    assert "1 task of shop.clean failed for good." in failed.out
    assert f"stopped by failed_for_good; try `trace why {task}`" in failed.out
    assert trace("why", uuid, "--json").json == trace("why", "shop_clean", "--json").json
    assert trace("why", "nothing_here").code == 1


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


def test_a_range_is_invalidated_and_a_bad_one_refused(running: Running, trace: Trace, file: Path) -> None:
    a_task(running, trace, file)
    assert "is invalidated" in trace("invalidate", "shop_orders", "--range", "0-4", "--reason", "a reorg").out
    running.do(drained(running.control))
    assert len(trace("task", "list", "--json").json["tasks"]) == 2
    for part in (("--range", "9-4"), ("--partition", "typo"), (), ("--range", "0-4", "--partition", "eu")):
        output = trace("invalidate", "shop_orders", *part, "--reason", "x")
        assert output.code == 1
    assert "Traceback" not in output.err
    assert trace("trigger", "shop", "fetch", "--cursor", "1", "--partition", "x").code == 1
    assert trace("trigger", "shop", "clean").code == 1


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


@pytest.mark.usefixtures("running")
def test_a_dag_is_deleted_after_it_was_deactivated_and_the_user_agreed(trace: Trace, file: Path) -> None:
    assert trace("dag", "deploy", str(file), "--activate").code == 0
    refused = trace("dag", "delete", "shop", "--yes")
    assert (refused.code, "`trace dag deactivate shop`" in refused.err) == (1, True)
    assert trace("dag", "deactivate", "shop", "--yes").code == 0
    asked = trace("dag", "delete", "shop")
    assert (asked.code, "This deletes DAG shop: 1 versions" in asked.err) == (1, True), asked.err
    deleted = trace("dag", "delete", "shop", "--yes", "--json").json
    assert (deleted["changed"], deleted["versions"]) == (True, 1)
    assert trace("dag", "delete", "shop", "--yes").out == "it was deleted before\n"
    assert trace("dag", "list", "--json").json["dags"] == []
