"""Operations within operations: what Sail would plan for minutes is left to Spark, and all that is not is answered."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

from tests.support.query.sail import SailSystem, as_it_is, sail_system
from tracelake.domain.sql.gate import CheckedSql, check_sql
from tracelake.query.checked_query import Relation
from tracelake.query.engine import CannotRun
from tracelake.query.sail.translate.nesting import MOST_LEVELS
from tracelake.query.sail.translate.translate import ForSail, translated
from tracelake.query.sail.translate.types import NotOnSail

pytestmark = pytest.mark.anyio
TYPES: Final = {"l": "bigint", "i": "int", "dec": "decimal(20,4)", "big": "decimal(38,0)", "ts": "timestamp"}
DEEPER: Final = 3 * MOST_LEVELS


def nested(before: str, value: str, after: str) -> Callable[[int], str]:
    return lambda levels: f"SELECT {before * levels}{value}{after * levels} AS x FROM few"  # noqa: S608 - our own words


def with_parts(columns: str, more: str = "") -> Callable[[int], str]:
    """Each part of a WITH reads the one before it."""

    def text(levels: int) -> str:
        parts = [f"c{at} AS (SELECT {columns} FROM c{at - 1}{more})" for at in range(1, levels + 1)]  # noqa: S608
        return f"WITH c0 AS (SELECT l, i FROM few), {', '.join(parts)} SELECT l AS x FROM c{levels}"  # noqa: S608

    return text


SHAPES: Final[Mapping[str, Callable[[int], str]]] = {
    "sums": nested("", "l", " + l"),
    "products": nested("", "i", " * i"),
    "signs": nested("-(", "i", ")"),
    "quotients of decimals": nested("", "dec", " / dec"),
    "decimals of 38 digits": nested("", "big", " + 1"),
    "moved times": nested("", "ts", " + INTERVAL 1 DAY"),
    "sums within calls": nested("coalesce(", "l", " + 1, 2)"),
    "sums of aggregates": nested("", "max(l)", " + max(i)"),
    "parts of a WITH": with_parts("l + i AS l, i"),
    "parts of a WITH with conditions": with_parts("i, l", " WHERE l + 1 > 0"),
    "subqueries": lambda levels: f"SELECT l AS x FROM {'(SELECT l + 1 AS l FROM ' * levels}few{') s' * levels}",  # noqa: S608
    "names of outputs": lambda levels: (
        f"SELECT l + 1 AS a0{''.join(f', a{at} + 1 AS a{at + 1}' for at in range(levels - 1))} FROM few"  # noqa: S608
    ),
    "queries within conditions": lambda levels: (
        f"SELECT l AS x FROM few WHERE l = (SELECT max(l) + 1 AS m FROM few){' + 1' * (levels - 1)}"  # noqa: S608
    ),
}


@pytest.fixture(scope="module")
async def system(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SailSystem]:
    async with sail_system(tmp_path_factory.mktemp("sail"), translate=translated) as system:
        columns: dict[str, Any] = {
            "l": pa.array([1, 2, None], pa.int64()),
            "i": pa.array([1, -1, 1], pa.int32()),
            "dec": pa.array([Decimal(1)] * 3, pa.decimal128(20, 4)),
            "big": pa.array([Decimal(7)] * 3, pa.decimal128(38, 0)),
            "ts": pa.array([datetime(2024, 1, 1, tzinfo=UTC)] * 3, pa.timestamp("us", "UTC")),
        }
        system.add("few", pa.table(columns), TYPES)
        yield system


@pytest.mark.parametrize("shape", SHAPES)
async def test_as_many_levels_as_sail_may_have_are_answered_and_more_are_left_to_spark(
    system: SailSystem, shape: str
) -> None:
    """The limit of a query is a minute, and each further level would triple its time."""
    assert (await system.engine.run(system.query(SHAPES[shape](MOST_LEVELS)))).engine == "sail"
    for levels in (MOST_LEVELS + 1, DEEPER):
        with pytest.raises(CannotRun, match="syntax"):
            await system.engine.run(system.query(SHAPES[shape](levels)))


async def test_levels_on_both_sides_of_a_group_by_do_not_add_up(system: SailSystem) -> None:
    text = with_parts("sum(l) + 1 AS l, i", " GROUP BY i")(MOST_LEVELS + 3)
    result = await system.engine.run(system.query(text))
    assert result.table is not None
    assert sorted(result.table["x"].to_pylist()) == [1 + MOST_LEVELS + 3, 2 + MOST_LEVELS + 3]


def test_a_query_for_which_the_stack_is_too_small_is_left_to_spark(system: SailSystem) -> None:
    query = system.query("SELECT l FROM few")
    text = "SELECT l FROM few WHERE " + " AND ".join(["l + i > 0"] * 450)  # noqa: S608
    checked: list[CheckedSql] = []
    thread = threading.Thread(target=lambda: checked.append(check_sql(text, {"few"}, deterministic=False)))
    thread.start()  # as the service checks long texts: it has all of the stack
    thread.join()
    with pytest.raises(NotOnSail, match="deep"):
        translated(checked[0], query.relations)


async def test_a_large_query_is_written_for_sail_beside_the_event_loop(tmp_path: Path) -> None:
    """It takes a tenth of a second, in which others would not be answered."""
    threads: list[threading.Thread] = []

    def written(checked: CheckedSql, relations: Mapping[str, Relation]) -> ForSail:
        threads.append(threading.current_thread())
        return as_it_is(checked, relations)

    async with sail_system(tmp_path, translate=written) as system:
        system.add("few", pa.table({"i": pa.array([1], pa.int32())}), {"i": "int"})
        for columns in ("i", ", ".join(f"i AS c{at}" for at in range(400))):
            assert (await system.engine.run(system.query(f"SELECT {columns} FROM few"))).rows == 1  # noqa: S608
    assert [thread is threading.main_thread() for thread in threads] == [True, False]
