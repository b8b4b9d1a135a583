"""Hostile queries through the listener: refused by the SQL gate and, without it, by the check of the plan."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cases.hostile_sql import ATTACKS, ONLY_THE_GATE
from tests.support.programs.ungated_query import TABLE, unchecked
from tests.support.query.process import a_service, answered
from tests.support.query.sail import as_it_is, open_to_all
from tests.support.systems.query import ROWS, QuerySystem
from tracelake.query import answer as answer_module
from tracelake.query.checked_query import CheckedQuery
from tracelake.query.sail.engine import SailEngine

pytestmark = pytest.mark.anyio
COUNT = "SELECT count(*) AS n FROM {granted}"
UNGATED = "tests.support.programs.ungated_query"
SECRET = "the contents of a private file"


@pytest.fixture
def file() -> Iterator[Path]:
    with open_to_all(SECRET) as file:
        yield file


@pytest.mark.parametrize("case", ATTACKS)
async def test_the_listener_refuses_hostile_sql(case: str, either: QuerySystem, file: Path) -> None:
    query = ATTACKS[case].format(file=file, granted="orders", other="theirs")
    answer = await either.ask("reader", query)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_sql"), answer.text
    assert "secret" not in answer.text
    # The table of another organisation is refused like one that does not exist.
    nowhere = await either.ask("reader", ATTACKS[case].format(file=file, granted="orders", other="nowhr_"))
    assert answer.text.replace("theirs", "nowhr_") == nowhere.text
    assert "theirs" not in (answer.json()["error"]["hint"] or "")


ANSWERED = {"case-only twin in a WITH", "shadow"} | {
    *("clock", "clock without parentheses", "clock in disguise", "chance", "uuid", "any rows"),
}
"""A user's own name in a WITH reads no dataset; and only a job must be able to repeat its rows."""


@pytest.mark.parametrize("case", ONLY_THE_GATE)
async def test_the_listener_refuses_what_only_the_gate_can(case: str, either: QuerySystem) -> None:
    answer = await either.ask("reader", of_orders(ONLY_THE_GATE[case]))
    if case in ANSWERED:
        assert answer.status_code == 200, answer.text
    else:
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["code"] in {"invalid_sql", "invalid_request"}


@pytest.mark.long
async def test_without_the_sql_gate_a_service_on_spark_answers_after_what_only_the_gate_refuses(
    system: QuerySystem, tmp_path: Path
) -> None:
    """Some of it takes all memory of its Spark, which is this process's own. Sail is in `test_sail`."""
    async with a_service(system, tmp_path / "home", module=UNGATED, max_rows=1000) as (_, listener):
        for case, text in ONLY_THE_GATE.items():
            asked = {"sql": of_orders(text), "timeout_seconds": 5}
            answer = await listener.post("/v1/query", json=asked)
            assert answer.status_code in {200, 400, 422, 503, 504}, (case, answer.text)
            assert answer.status_code == 200 or answer.json()["error"]["message"], case
            assert await answered(listener, COUNT.format(granted="orders")) == [[ROWS]], case


def of_orders(text: str) -> str:
    return re.sub(r"\bid\b", "value", text.replace("granted", "orders").replace("GRANTED", "ORDERS"))


@pytest.mark.parametrize("case", ATTACKS)
async def test_without_the_sql_gate_the_listener_refuses_too_and_nothing_ran(
    case: str, system: QuerySystem, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _switch_gate_off(monkeypatch)
    answer = await system.ask("reader", ATTACKS[case].format(file=file, granted="orders", other="theirs"))
    assert answer.status_code in {400, 422}, answer.text
    assert SECRET not in answer.text
    assert [path.name for path in file.parent.iterdir()] == ["secret.txt"]


@pytest.mark.parametrize("case", [*ATTACKS, "nothing hostile"])
async def test_without_the_sql_gate_sail_finds_nothing_in_its_sandbox(
    case: str, auto_system: QuerySystem, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sail answers some of them, with what is in its sandbox; what it fails at, Spark refuses."""
    _send_to_sail(monkeypatch)
    before = await _asked_sail(auto_system)
    text = {**ATTACKS, "nothing hostile": COUNT}[case].format(file=file, granted="orders", other="theirs")
    answer = await auto_system.ask("reader", text, timeout_seconds=20)
    assert answer.status_code in {200, 400, 422, 503, 504}, answer.text
    assert answer.status_code != 200 or answer.json()["engine"] == "sail"
    assert answer.status_code in {503, 504} or await _asked_sail(auto_system) == before + 1
    assert case != "nothing hostile" or answer.json()["rows"][0][0] >= ROWS
    assert SECRET not in answer.text
    assert [path.name for path in file.parent.iterdir()] == ["secret.txt"]


async def _asked_sail(system: QuerySystem) -> float:
    """How many queries Sail answered or failed at. What is refused before has other reasons."""
    ended = {"sail same", "spark failed", "spark memory", "spark files"}
    counts = await system.counters()
    return sum(counts.get(("trace_query_runs_total", labels), 0) for labels in ended)


def _send_to_sail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switch the gate off, and pass the text to Sail as it is."""
    run = SailEngine.run

    def run_as_it_is(engine: SailEngine, query: CheckedQuery) -> Any:
        monkeypatch.setattr(engine, "_translate", as_it_is)
        return run(engine, query)

    _switch_gate_off(monkeypatch)
    monkeypatch.setattr(SailEngine, "run", run_as_it_is)


def _switch_gate_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_module, "check_sql", unchecked)
    monkeypatch.setattr(answer_module, "table_names", lambda _: frozenset({TABLE}))


async def test_after_the_attacks_the_service_answers(system: QuerySystem) -> None:
    assert (await system.rows("reader", "SELECT count(*) >= 20 AS n FROM orders")) == [[True]]
    assert ROWS == 20
