"""A deleted fence turns the suite red: each line marked `-- fence` is taken out, one at a time, and must be missed."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.dispatcher import test_functions as functions
from tests.dispatcher import test_lifecycle as lifecycle
from tests.dispatcher import test_logs as logs
from tests.dispatcher import test_outputs as outputs
from tests.dispatcher.support import control_for
from trace_platform.dispatcher.control import Control
from trace_platform.store import queries as queries_module
from trace_platform.store.migrate import Database

FENCES = [
    (path.name, number)
    for path in sorted(queries_module.FOLDER.glob("*.sql"))
    for number, line in enumerate(path.read_text().splitlines())
    if line.rstrip().endswith("-- fence")
]

SCENARIOS: list[Callable[[Control], Awaitable[None]]] = [
    lambda control: lifecycle.test_a_reply_with_a_wrong_token_or_attempt_changes_nothing(
        control, lifecycle.FORGERIES[0]
    ),
    lambda control: lifecycle.test_a_reply_with_a_wrong_token_or_attempt_changes_nothing(
        control, lifecycle.FORGERIES[1]
    ),
    lifecycle.test_a_stale_attempt_cannot_heartbeat_emit_or_commit,
    lifecycle.test_of_many_claims_at_once_exactly_one_is_given,
    lifecycle.test_a_claim_whose_answer_was_lost_is_answered_again_with_its_lease_and_its_inputs,
    lifecycle.test_a_heartbeat_extends_the_lease_and_tells_of_a_cancel,
    lambda control: lifecycle.test_another_completion_of_an_ended_attempt_is_a_conflict(control, outputs=False),
    lambda control: lifecycle.test_another_completion_of_an_ended_attempt_is_a_conflict(control, outputs=True),
    outputs.test_an_attempt_that_has_ended_or_lost_its_lease_is_told_of_no_files,
    outputs.test_an_attempt_that_has_ended_or_lost_its_lease_may_not_ask_by_sql,
    *(partial(functions.test_only_an_attempt_that_runs_can_be_put_back, forged=one) for one in functions.FORGERIES),
    partial(functions.test_only_an_attempt_that_runs_can_be_put_back, forged=None),
    *(
        partial(logs.test_only_the_current_attempt_is_heard_also_when_it_has_just_ended, forged=one)
        for one in logs.FORGERIES
    ),
]


@pytest.fixture
def without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, int], None]]:
    """The statements of a copied folder, from which a line can be taken."""
    folder = tmp_path / "sql"
    shutil.copytree(queries_module.FOLDER, folder)
    monkeypatch.setattr(queries_module, "FOLDER", folder)
    queries_module.queries.cache_clear()

    def take_out(file: str, number: int) -> None:
        lines = (folder / file).read_text().splitlines()
        del lines[number]
        (folder / file).write_text("\n".join(lines))
        queries_module.queries.cache_clear()

    yield take_out
    monkeypatch.undo()
    queries_module.queries.cache_clear()


def test_there_are_fences_in_every_fenced_statement() -> None:
    assert {file for file, _ in FENCES} >= {"claim.sql", "complete.sql"}
    assert len(FENCES) >= 9


@pytest.mark.parametrize(("file", "number"), FENCES)
def test_the_suite_misses_each_fence(
    file: str, number: int, without: Callable[[str, int], None], clone: Callable[[Database], str], tmp_path: Path
) -> None:
    without(file, number)
    assert any(fails(scenario, clone, tmp_path / str(n)) for n, scenario in enumerate(SCENARIOS))


def fails(scenario: Callable[[Control], Awaitable[None]], clone: Callable[[Database], str], folder: Path) -> bool:
    async def run() -> None:
        async with control_for(clone("state"), clone("queue"), folder) as control:
            await scenario(control)

    try:
        asyncio.run(run())
    except (Exception, pytest.fail.Exception):  # noqa: BLE001 - whatever the scenario says, it noticed
        return True
    return False
