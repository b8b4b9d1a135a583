"""`trace trigger`, `task`, `why` and `invalidate`: a task from its trigger to its end."""

from __future__ import annotations

import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import UUID

import pytest

from tests.support.dispatcher.job_chain import claimed, completion, drained
from tests.support.systems.command_line import Running, Trace, deployed_task, fail
from tests.support.waiting import until
from tracelake.dispatcher.control import Control
from tracelake.lite.home import Home

pytestmark = pytest.mark.usefixtures("known_operators")


def test_a_task_is_followed_from_trigger_to_its_end(running: Running, trace: Trace, file: Path) -> None:
    assert "no tasks yet" in trace("task", "list").out
    task = deployed_task(running, trace, file)
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
            (("--range", "0-9"), {}, (0, "1 of 1 task completed")),
            (("--range", "10-19", "--downstream"), {}, (0, "1 of 1 task completed")),
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
    assert "the time is over: 0 of 0 tasks have ended, 0 running; 1 event to be routed" in output.out
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
    task = str(deployed_task(running, trace, file))
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
    task = deployed_task(running, trace, file)
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


def test_a_range_is_invalidated_and_a_bad_one_refused(running: Running, trace: Trace, file: Path) -> None:
    deployed_task(running, trace, file)
    assert "is invalidated" in trace("invalidate", "shop_orders", "--range", "0-4", "--reason", "a reorg").out
    running.do(drained(running.control))
    assert len(trace("task", "list", "--json").json["tasks"]) == 2
    for part in (("--range", "9-4"), ("--partition", "typo"), (), ("--range", "0-4", "--partition", "eu")):
        output = trace("invalidate", "shop_orders", *part, "--reason", "x")
        assert output.code == 1
    assert "Traceback" not in output.err
    assert trace("trigger", "shop", "fetch", "--cursor", "1", "--partition", "x").code == 1
    assert trace("trigger", "shop", "clean").code == 1
