"""Hostile queries through the listener: refused by the SQL gate and, without it, by the check of the plan."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlglot import exp

from tests.support.cases.hostile_sql import ATTACKS
from tests.support.query.sail import Unchecked as PassedOn
from tests.support.query.sail import as_it_is, open_to_all
from tests.support.systems.query import ROWS, QuerySystem
from tracelake.domain.sql.gate import check_sql
from tracelake.query import answer as answer_module
from tracelake.query.checked_query import CheckedQuery
from tracelake.query.sail.engine import SailEngine

pytestmark = pytest.mark.anyio
COUNT = "SELECT count(*) AS n FROM {granted}"
SECRET = "the contents of a private file"


class Unchecked:
    """What a gate that checks nothing would pass on."""

    tables = frozenset({"orders"})
    read_once = frozenset({"orders"})
    row_bytes = 0

    def __init__(self, text: str, tree: exp.Select) -> None:
        self.text = text
        self.tree = tree

    def render(self, views: dict[str, str]) -> str:
        return self.text.replace("orders", views["orders"])


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


@pytest.mark.parametrize("case", ATTACKS)
async def test_without_the_sql_gate_the_listener_refuses_too_and_nothing_ran(
    case: str, system: QuerySystem, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _switch_gate_off(monkeypatch, exp.Select())
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
    good, run = check_sql(COUNT.format(granted="orders"), {"orders"}, deterministic=False), SailEngine.run

    def run_as_it_is(engine: SailEngine, query: CheckedQuery) -> Any:
        monkeypatch.setattr(engine, "_translate", as_it_is)
        return run(engine, query)

    def unchecked(text: str, *_: Any, **__: Any) -> PassedOn:
        return PassedOn(good.tree, good.tables, text=text.replace("orders", "{granted}"))

    monkeypatch.setattr(answer_module, "check_sql", unchecked)
    monkeypatch.setattr(answer_module, "table_names", lambda _: frozenset({"orders"}))
    monkeypatch.setattr(SailEngine, "run", run_as_it_is)


def _switch_gate_off(monkeypatch: pytest.MonkeyPatch, tree: exp.Select) -> None:
    def unchecked(text: str, *_: Any, **__: Any) -> Unchecked:
        return Unchecked(text, tree)

    monkeypatch.setattr(answer_module, "check_sql", unchecked)
    monkeypatch.setattr(answer_module, "table_names", lambda _: frozenset({"orders"}))


async def test_after_the_attacks_the_service_answers(system: QuerySystem) -> None:
    assert (await system.rows("reader", "SELECT count(*) >= 20 AS n FROM orders")) == [[True]]
    assert ROWS == 20
