"""Lines about a task carry organisation, DAG, job, task and attempt, each its own; and none carries a secret."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import pytest
import structlog

from tests.support.dispatcher.job_chain import claimed
from tests.support.systems.walk import Walk, walking, working
from tests.support.verbs import trigger
from tracelake.errors import LeaseLost
from tracelake.operators.api.outcome import Outcome
from tracelake.runtime.coalesce import Coalesced
from tracelake.runtime.logs import configure_logging, current_log_fields, log_fields, set_log_fields
from tracelake.settings import LogSettings
from tracelake.wire.task.lifecycle import TaskPayload
from tracelake.wire.task.outputs import CompleteRequest
from tracelake.worker.run_task import run_pure

pytestmark = pytest.mark.anyio

SUBJECT = {"org", "dag", "job", "task", "attempt"}
Lines = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def lines() -> Iterator[Lines]:
    said = io.StringIO()
    before = logging.getLogger().handlers[:]
    with redirect_stdout(said):
        configure_logging("both", LogSettings(level="debug"))
    yield lambda: [json.loads(line) for line in said.getvalue().splitlines()]
    structlog.reset_defaults()
    logging.getLogger().handlers[:] = before


@pytest.fixture
async def walk(lines: Lines, state_db: str, queue_db: str, tmp_path: Path) -> AsyncIterator[Walk]:
    del lines  # first: what the Dispatcher says is to be read
    async with walking(state_db, queue_db, tmp_path) as made:
        yield made


async def test_every_line_about_a_task_says_whose_it_is_while_many_run_together(lines: Lines, walk: Walk) -> None:
    async with working(walk.worker("one")), working(walk.worker("two")):
        for cursor in range(20):
            await trigger(walk.control, walk.org.id, "walk", "ask", cursor=cursor, request_id=uuid4())
        await walk.until("after", ["Completed"] * 20)
    said = lines()
    rows = await walk.control.pool.fetch(
        "SELECT t.id FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = 'work'"
    )
    ids = {str(row["id"]) for row in rows}
    for event in ("claimed", "runs"):
        assert {line["task"] for line in said if line["event"] == event} == ids
    # One line of the worker and one of the API for each; those of the API have the id of their request.
    completed = [line for line in said if line["event"] == "completed"]
    assert sorted(line["task"] for line in completed) == sorted([*ids, *ids])
    requests = [line["request"] for line in completed if "request" in line]
    assert len(requests) == 20
    for line in said:
        if line["event"] in {"claimed", "runs", "completed"}:
            assert set(line) >= SUBJECT, line
            assert (line["org"], line["dag"], line["job"]) == (str(walk.org.id), "walk", "work")
            assert line["attempt"] == 1
        assert line["process"] == "both"


async def test_no_line_holds_a_token(lines: Lines, walk: Walk) -> None:
    seen: list[str] = []

    def note(task: TaskPayload) -> Outcome:
        if task.scope.cursor == 0:
            raise RuntimeError("broken")
        return run_pure(task)

    async with working(walk.worker("one", note)):
        for cursor in range(2):
            await trigger(walk.control, walk.org.id, "walk", "ask", cursor=cursor, request_id=uuid4())
        await walk.until("after", ["Completed"])
    await walk.dispatcher.http.post("/internal/task-claim", content=b"{", headers={"X-Trace-Worker-Token": "secret-1"})
    seen += [str(row[0]) for row in await walk.control.pool.fetch("SELECT lease_token FROM task_attempts")]
    text = json.dumps(lines())
    for secret in (*seen, "secret-1", "eyJ"):
        assert secret not in text


async def test_a_refusal_says_whose_task_it_was_also_where_it_was_not_claimed(lines: Lines, walk: Walk) -> None:
    await trigger(walk.control, walk.org.id, "walk", "ask", cursor=1, request_id=uuid4())
    await walk.until("work", ["Queued"])
    task, _ = await claimed(walk.control, await walk.control.pool.fetchval("SELECT id FROM tasks"))
    await walk.control.pool.execute("UPDATE tasks SET lease_token = gen_random_uuid()")
    walk.control.names.forget(task.task.task_id)  # as if another replica had given it out
    late = CompleteRequest(
        task_id=task.task.task_id, attempt=task.attempt, lease_token=task.lease_token, status="Completed"
    )
    with pytest.raises(LeaseLost):
        await walk.tasks.complete(task.capability_token, late)
    (line,) = [item for item in lines() if item["event"] == "refused"]
    assert line["code"] == "lease_lost"
    assert line["status"] == 409
    assert SUBJECT | {"request"} <= set(line)
    assert line["job"] == "work"


async def test_an_attempt_that_is_given_up_is_said_with_whose_it_was(lines: Lines, walk: Walk) -> None:
    await trigger(walk.control, walk.org.id, "walk", "ask", cursor=1, request_id=uuid4())
    await walk.until("work", ["Queued"])
    await claimed(walk.control, await walk.control.pool.fetchval("SELECT id FROM tasks"))
    await walk.control.pool.execute("UPDATE tasks SET lease_expires_at = now()")
    await walk.control.expire_leases().once()
    await walk.until("work", ["Failed"])
    (line,) = [item for item in lines() if item["event"] == "attempt given up"]
    assert set(line) >= SUBJECT
    assert "was not heard" in line["because"]


async def test_log_lines_of_a_batch_do_not_carry_the_fields_of_its_first_caller() -> None:
    inside: list[Any] = []

    async def run(requests: Sequence[int]) -> Sequence[int]:
        inside.append(dict(current_log_fields()))
        await asyncio.sleep(0)
        return requests

    coalesced: Coalesced[int, int] = Coalesced(run, key=lambda answer: answer, verb="batch")

    async def call(number: int) -> None:
        set_log_fields(task=number)
        assert await coalesced(number) == number
        assert current_log_fields() == {"task": number}

    await asyncio.gather(*(call(number) for number in range(10)))
    assert inside
    assert all(said == {} for said in inside)


def test_what_a_block_speaks_of_ends_with_it(lines: Lines) -> None:
    log = structlog.get_logger()
    with log_fields(task="a"):
        with log_fields(attempt=2):
            log.info("inner")
        log.info("outer")
    log.info("after")
    inner, outer, after = lines()
    assert (inner["task"], inner["attempt"]) == ("a", 2)
    assert outer["task"] == "a"
    assert "attempt" not in outer
    assert "task" not in after


@pytest.mark.parametrize("form", ["json", "console"])
def test_no_line_lets_a_terminal_obey_text_of_others(form: Literal["json", "console"]) -> None:
    evil = "\x1b]0;title\x07\x9b31m\u202e\nfake=line"
    said = io.StringIO()
    before = logging.getLogger().handlers[:]
    try:
        with redirect_stdout(said):
            configure_logging("both", LogSettings(format=form))
            structlog.get_logger().error(evil, value=evil, **{evil: "key"})
            logging.getLogger("library").error("%s", evil)
            structlog.get_logger().error("failed", exc_info=RuntimeError(evil))
    finally:
        structlog.reset_defaults()
        logging.getLogger().handlers[:] = before
    shown = re.sub("\x1b\\[[0-9;]*m", "", said.getvalue())  # the renderer's own colours
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", shown)
    assert sum(line.startswith("fake=line") for line in shown.splitlines()) == (form == "console")  # the traceback's
    assert shown.count("title") >= 5


def test_libraries_speak_json_too(lines: Lines) -> None:
    with log_fields(request="r-1"):
        logging.getLogger("uvicorn.error").error("it %s", "broke")
    (line,) = lines()
    assert (line["event"], line["level"], line["logger"], line["request"]) == (
        "it broke",
        "error",
        "uvicorn.error",
        "r-1",
    )
