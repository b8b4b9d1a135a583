"""Without a fence, what it forbids is noticed: each condition marked `-- fence` is opened, one at a time.

`holds_lease` is opened twice in each statement that uses it, once for any attempt and once for any lease token. Any
other condition is made always true. The statement must still be one that Postgres prepares, and honest calls must still
be answered. Only then does it say something about the fence that a scenario of the suite fails, and only if it fails
because of what it asserts.
"""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from tests.dispatcher.runtimes import test_functions as functions
from tests.dispatcher.tasks import test_credentials_entries as credentials
from tests.dispatcher.tasks import test_lifecycle as lifecycle
from tests.dispatcher.tasks import test_logs as logs
from tests.dispatcher.tasks import test_outputs as outputs
from tests.support.dispatcher.control import control_for
from tests.support.dispatcher.job_chain import a_task, claimed, completion, deploy_chain, status
from tests.support.dispatcher.staged_files import staged
from tests.support.verbs import accept_events
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.datasets.list_task_files import list_files
from tracelake.dispatcher.datasets.resolve_relations import task_relations
from tracelake.dispatcher.runtimes.call_functions import put_back
from tracelake.dispatcher.tasks.renew_lease import Beat
from tracelake.dispatcher.tasks.store_logs import store_logs
from tracelake.store import queries as queries_module
from tracelake.store.migrate import Database
from tracelake.wire.internal.queries import RelationsRequest
from tracelake.wire.task.lifecycle import Claimed, ClaimRequest, HeartbeatRequest
from tracelake.wire.task.outputs import EventsRequest, FilesRequest

Scenario = Callable[[Control], Awaitable[None]]
Fence = tuple[str, str, str]
"""A statement, as `file.name`, one of its conditions, and how it is opened."""
MARKED = re.compile(r"^(\s*(?:AND|WHERE)) (.+) -- fence$", re.MULTILINE)
HOLDS_LEASE = re.compile(r"holds_lease\(t, (\S+), (\S+)\)")
ANY_ATTEMPT, ANY_TOKEN, ALWAYS = "any attempt", "any lease token", "always"

FORGED_TOKEN = partial(
    lifecycle.test_a_reply_with_a_wrong_token_or_attempt_changes_nothing, forged=lifecycle.FORGERIES[0]
)
FORGED_ATTEMPT = partial(
    lifecycle.test_a_reply_with_a_wrong_token_or_attempt_changes_nothing, forged=lifecycle.FORGERIES[1]
)
LOST_CLAIM = lifecycle.test_a_claim_whose_answer_was_lost_is_answered_again_with_its_lease_and_its_inputs
NO_FILES = outputs.test_an_attempt_that_has_ended_or_lost_its_lease_cannot_list_files
NO_SQL = outputs.test_an_attempt_that_has_ended_or_lost_its_lease_cannot_query
PUT_BACK = [
    partial(functions.test_only_an_attempt_that_runs_can_be_put_back, forged=forgery)
    for forgery in (*functions.FORGERIES, None)
]
LINES = [
    partial(logs.test_only_lines_of_the_current_attempt_are_stored_also_when_it_has_just_ended, forged=forgery)
    for forgery in logs.FORGERIES
]
ENTRIES = [
    partial(credentials.test_an_attempt_that_is_not_the_current_one_leaves_no_entry, forged=forgery)
    for forgery in credentials.FORGERIES
]
ANOTHER_END = partial(lifecycle.test_another_completion_of_an_ended_attempt_is_a_conflict, outputs=False)


def of_lease(statement: str, condition: str, attempt: Scenario, token: Scenario) -> dict[Fence, Scenario]:
    return {(statement, condition, ANY_ATTEMPT): attempt, (statement, condition, ANY_TOKEN): token}


GIVEN, BATCH = "holds_lease(t, $2, $3)", "holds_lease(t, a.attempt, a.lease_token)"
RUNNING = "(t.status = 'Running') IS TRUE"
FENCES: dict[Fence, Scenario] = {
    **of_lease("audit.store_credentials", BATCH, ENTRIES[0], ENTRIES[1]),
    (
        "claim.claim_tasks",
        "(t.status = 'Queued') IS TRUE",
        ALWAYS,
    ): lifecycle.test_of_many_claims_at_once_exactly_one_is_given,
    ("claim.claim_again", "holds_lease(t, t.attempt, a.lease_token)", ANY_TOKEN): LOST_CLAIM,
    ("claim.claim_again", RUNNING, ALWAYS): LOST_CLAIM,
    **of_lease("claim.renew_leases", BATCH, FORGED_ATTEMPT, FORGED_TOKEN),
    ("claim.renew_leases", RUNNING, ALWAYS): lifecycle.test_a_heartbeat_extends_the_lease_and_reports_a_cancel,
    **of_lease("claim.status_of_attempt", GIVEN, NO_FILES, NO_FILES),
    **of_lease("complete.lock_fenced", BATCH, FORGED_ATTEMPT, FORGED_TOKEN),
    **of_lease("complete.complete_tasks", BATCH, FORGED_ATTEMPT, FORGED_TOKEN),
    ("complete.complete_tasks", "open", ALWAYS): ANOTHER_END,
    **of_lease("functions.release", GIVEN, PUT_BACK[0], PUT_BACK[1]),
    ("functions.release", RUNNING, ALWAYS): PUT_BACK[2],
    **of_lease("lifecycle.put_back", GIVEN, PUT_BACK[0], PUT_BACK[1]),
    ("lifecycle.put_back", RUNNING, ALWAYS): PUT_BACK[2],
    ("relations.running_attempt", "t.status = 'Running'", ALWAYS): NO_SQL,
    **of_lease("relations.running_attempt", GIVEN, NO_SQL, NO_SQL),
    **of_lease("task_logs.store_lines", GIVEN, LINES[0], LINES[1]),
}
"""Every fence, and what is not so without it. A new one needs a scenario; one that is gone is missed here."""

BEHIND: dict[Fence, str] = {
    ("claim.claim_tasks", "(t.status = 'Queued') IS TRUE", ALWAYS): "task_attempts_pkey",
    ("claim.claim_again", RUNNING, ALWAYS): "tasks_only_running_has_a_lease",
    ("claim.renew_leases", RUNNING, ALWAYS): "tasks_only_running_has_a_lease",
    ("functions.release", RUNNING, ALWAYS): "tasks_completion_ends_an_attempt",
    ("lifecycle.put_back", RUNNING, ALWAYS): "tasks_only_completed_has_outputs",
}
"""Fences behind which a constraint of the schema refuses the same."""


def test_these_are_all_the_fences_of_the_statements() -> None:
    marked = [
        (f"{path.stem}.{name}", condition, way)
        for path in sorted(queries_module.FOLDER.glob("*.sql"))
        for name, sql in queries_module.queries(path.stem).items()
        for _, condition in MARKED.findall(sql)
        for way in openings(condition)
    ]
    assert sorted(marked) == sorted(FENCES)
    lines = sum(path.read_text().count("-- fence\n") for path in queries_module.FOLDER.rglob("*.sql"))
    assert lines == len({fence[:2] for fence in FENCES}), "every marked line is a condition of one statement"


def openings(condition: str) -> dict[str, str]:
    """Weaker forms of the condition, by name."""
    if (arguments := HOLDS_LEASE.fullmatch(condition)) is None:
        return {ALWAYS: "true"}
    attempt, token = arguments.groups()
    holes = {ANY_ATTEMPT: f"holds_lease(t, t.attempt, {token})", ANY_TOKEN: f"holds_lease(t, {attempt}, t.lease_token)"}
    return {way: hole for way, hole in holes.items() if hole != condition}


def test_every_statement_checks_attempt_and_lease_by_the_one_fence() -> None:
    """Else a fence could be missing here, or mean something else."""
    spelled = re.compile(r"(?:lease_token|attempt) = (?:a\.|\$)")
    unfenced = {
        f"{path.stem}.{name}"
        for path in queries_module.FOLDER.glob("*.sql")
        for name, sql in queries_module.queries(path.stem).items()
        if spelled.search(sql) and "tasks t" in sql
    }
    assert unfenced == {"claim.claim_tasks"}, "which stores the token of a new lease"


@pytest.mark.parametrize("fence", FENCES, ids=" ".join)
def test_without_this_fence_honest_calls_succeed_and_a_forged_or_late_one_is_noticed(
    fence: Fence, without: Callable[[Fence], str], clone: Callable[[Database], str], tmp_path: Path
) -> None:
    statement = without(fence)

    async def on_a_system(scenario: Scenario, name: str) -> None:
        async with control_for(clone("state"), clone("queue"), tmp_path / name) as control:
            async with control.pool.acquire() as connection:
                await connection.prepare(statement)
            await scenario(control)

    # A claim that is repeated tries to claim a running task first: to let it is what opening that fence means.
    asyncio.run(on_a_system(claimed_again if fence[0] == "claim.claim_again" else honest_calls, "honest"))
    with noticed(fence):
        asyncio.run(on_a_system(FENCES[fence], "hostile"))


def noticed(fence: Fence) -> AbstractContextManager[Any]:
    """By what the scenario asserts; else by the schema, where that is known to stand behind the fence."""
    if fence in BEHIND:
        return pytest.raises(asyncpg.IntegrityConstraintViolationError, match=f'"{BEHIND[fence]}"')
    return pytest.raises((AssertionError, pytest.fail.Exception))


@pytest.fixture
def without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Fence], str]]:
    """Makes a fence of a copy of the statements always true; gives the statement that this leaves."""
    folder = tmp_path / "sql"
    shutil.copytree(queries_module.FOLDER, folder)
    monkeypatch.setattr(queries_module, "FOLDER", folder)
    queries_module.queries.cache_clear()

    def open_up(fence: Fence) -> str:
        (file, name), condition, way = fence[0].split("."), fence[1], fence[2]
        path = folder / f"{file}.sql"
        before, named, rest = path.read_text().partition(f"-- name: {name}\n")
        statement, *others = re.split(r"^(?=-- name: )", rest, maxsplit=1, flags=re.MULTILINE)
        line = re.compile(rf"^(\s*(?:AND|WHERE)) ({re.escape(condition)}) -- fence$", re.MULTILINE)
        opened, count = line.subn(lambda found: f"{found[1]} (({condition}) OR {openings(condition)[way]})", statement)
        assert count == 1
        path.write_text("".join([before, named, opened, *others]))
        queries_module.queries.cache_clear()
        return queries_module.queries(file)[name]

    yield open_up
    monkeypatch.undo()
    queries_module.queries.cache_clear()


async def claimed_again(control: Control) -> None:
    """By a caller that did not get the answer."""
    chain = await deploy_chain(control)
    request = ClaimRequest(task_id=await a_task(control, chain), worker_id="w", claim_id=uuid4())
    heard = await control.claimer().batched()(request)
    assert isinstance(heard, Claimed)
    again = await control.claimer().batched()(request)
    assert isinstance(again, Claimed)
    assert again.lease_token == heard.lease_token


async def honest_calls(control: Control) -> None:
    """Every other fenced statement once, by who may."""
    chain = await deploy_chain(control)
    task, claims = await claimed(control, await a_task(control, chain))
    fence: dict[str, Any] = {
        "task_id": task.task.task_id,
        "attempt": task.attempt,
        "lease_token": task.lease_token,
    }
    assert not (await control.renewer().batched(control.metrics)(Beat(HeartbeatRequest(**fence), claims))).canceled
    await accept_events(control, EventsRequest(**fence, events=[chain.event("first", cursor=1)]), claims)
    assert (await store_logs(control.hot, logs.lines(task, "a line"))).kept == 1
    await list_files(control.pool, FilesRequest(**fence, dataset_uuid=chain.datasets["first"]), claims)
    assert await credentials.stored(control, credentials.entry(task)) == ["stored"]
    assert (await task_relations(control.pool, RelationsRequest(tables=[], **fence))).org_id == chain.org.id
    await control.completer()(completion(task, outputs=staged(control.objects, task, (0, 9))), claims)
    assert await status(control, task.task.task_id) == "Completed"

    plain, claims = await claimed(control, await a_task(control, chain))
    await control.completer()(completion(plain), claims)
    assert await status(control, plain.task.task_id) == "Completed"

    unused, _ = await claimed(control, await a_task(control, chain))
    fenced = unused.task.task_id, unused.attempt, unused.lease_token
    assert await put_back(control.completer(), fenced, "nothing has run")

    idle, _ = await claimed(control, await a_task(control, chain))
    fenced = idle.task.task_id, idle.attempt, idle.lease_token
    assert await control.pool.fetchval(queries_module.queries("functions")["release"], *fenced) == 1
