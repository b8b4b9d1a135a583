"""`quality`: a failed check stops the task and names rows; a warning is reported."""

from __future__ import annotations

from decimal import Decimal

import pytest

from tests.support.systems.operators import Numbers, OperatorSystem, numbers_dag
from tracelake.errors import InvalidDag
from tracelake.operators.quality import SPEC

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("numbers")]


def dag(*checks: str, inputs: str = "[{from: {job: numbers}}]") -> str:
    query = "SELECT block_number FROM numbers WHERE value > 30"
    lines = "\n".join(f"        - {check}" for check in checks)
    return f"""{numbers_dag(3)}  - name: few
    operator: sql
    config: {{query: {query}}}
    inputs: [{{from: {{job: numbers}}}}]
  - name: look
    operator: quality
    config:
      checks:
{lines}
    inputs: {inputs}
publish:
  report: {{job: look}}
"""


async def test_a_report_has_one_row_for_each_check_and_partition(system: OperatorSystem, numbers: Numbers) -> None:
    numbers.value = lambda number: None if number == 3 else number % 4
    await system.deploy(
        dag(
            "{kind: not_null, columns: [block_number]}",
            "{kind: not_null, columns: [block_number, value], level: warn}",
            "{kind: unique, columns: [block_number]}",
            "{kind: unique, columns: [value], level: warn, name: values differ}",
            "{kind: range, column: value, min: 0, max: 2, level: warn}",
            "{kind: continuous}",
            "{kind: row_count, min: 1, max: 5, level: warn}",
            "{kind: sql, query: SELECT block_number FROM numbers WHERE value = 2, level: warn}",
        )
    )
    states = await system.run("d", "ask", start=0, end=9)
    assert states["look"] == ["Completed"], await system.error("look")
    found = {row["check"]: row for row in await system.rows("report")}
    assert {name: (row["level"], row["passed"], row["failing_rows"]) for name, row in found.items()} == {
        "not_null block_number": ("fail", True, 0),
        "not_null block_number, value": ("warn", False, 1),
        "unique block_number": ("fail", True, 0),
        "values differ": ("warn", False, 5),
        "range value": ("warn", False, 1),
        "continuous block_number": ("fail", True, 0),
        "row_count": ("warn", False, 5),
        "sql": ("warn", False, 2),
    }
    assert "block_number=3" in found["not_null block_number, value"]["explanation"]
    assert found["row_count"]["explanation"] == "10 rows, not 1 to 5"
    assert {(row["partition"], row["start"], row["end"]) for row in found.values()} == {("0-9", 0, 9)}


async def test_uniqueness_is_the_same_when_another_check_counts_the_column(
    system: OperatorSystem, numbers: Numbers
) -> None:
    """With `continuous` there is one pass less, and the result is the same: NULL is one key."""
    among = ("{kind: unique, columns: [value], level: warn}", "{kind: continuous, column: value, level: warn}")
    await system.deploy(dag(*among))
    given: dict[tuple[int, int], dict[int, int | None]] = {
        (0, 3): {0: None, 1: 5, 2: 6, 3: 7},
        (10, 13): {10: None, 11: None, 12: 6, 13: 7},
        (20, 23): {20: 5, 21: 5, 22: 5, 23: None},
        (30, 33): {30: 1, 31: 2, 32: 3, 33: 4},
    }
    for (start, end), values in given.items():
        numbers.value = values.__getitem__
        await system.run("d", "ask", start=start, end=end)
    found = {row["partition"]: row["failing_rows"] for row in await system.rows("report") if "unique" in row["check"]}
    assert found == {"0-3": 0, "10-13": 1, "20-23": 2, "30-33": 0}


async def test_a_failed_check_fails_the_task_for_good_with_its_rows_and_commits_nothing(
    system: OperatorSystem, numbers: Numbers
) -> None:
    numbers.value = lambda number: -1 if number in (2, 7) else number
    await system.deploy(dag("{kind: range, column: value, min: 0}", "{kind: row_count, max: 3}"))
    states = await system.run("d", "ask", start=0, end=9)
    assert states["look"] == ["Failed"]
    message = await system.error("look")
    assert "2 checks failed" in message
    assert "range value: 2 rows outside 0 or more" in message
    assert "block_number=2" in message
    assert "row_count: 10 rows, not at most 3" in message
    assert await system.partitions("report") == []
    again = await system.fetch("SELECT next_retry_at FROM tasks WHERE status = 'Failed'")
    assert [row["next_retry_at"] for row in again] == [None], "the same rows would fail again"


async def test_numbers_beyond_64_bits_are_checked_exactly(system: OperatorSystem, numbers: Numbers) -> None:
    """Like wei: 1000 ETH have 22 digits, which doubles cannot hold exactly."""
    wei = 10**21
    numbers.value = lambda number: Decimal(wei + number - 5) if number != 3 else Decimal(10**37)
    checks = {
        f"{{kind: range, column: value, max: {wei}}}": 5,
        f"{{kind: range, column: value, min: {wei + 1}}}": 5,
        "{kind: range, column: value, max: 1.0e+21}": 5,
        f"{{kind: range, column: value, min: -{10**37}, max: {10**37}}}": 0,
        f"{{kind: range, column: block_number, max: {wei}}}": 0,
        f"{{kind: range, column: block_number, min: {wei}}}": 10,
        "{kind: range, column: block_number, min: 2.5, max: 7.5}": 5,
        "{kind: continuous, column: value}": 2**63 - 1,
    }
    named = [item.replace("}", f", level: warn, name: c{n}}}") for n, item in enumerate(checks)]
    await system.deploy(dag(*named))
    states = await system.run("d", "ask", start=0, end=9)
    assert states["look"] == ["Completed"], await system.error("look")
    found = {row["check"]: row for row in await system.rows("report")}
    assert {item: found[f"c{n}"]["failing_rows"] for n, item in enumerate(checks)} == checks
    assert f"such as {wei - 2}, {wei + 5}-{10**37 - 1}" in found["c7"]["explanation"]


async def test_gaps_are_named_from_the_first_number_of_the_partition_to_the_last(system: OperatorSystem) -> None:
    await system.deploy(dag("{kind: continuous, input: few, level: warn}", inputs="[{from: {job: few}}]"))
    await system.run("d", "ask", start=0, end=9)
    (row,) = await system.rows("report")
    assert row["failing_rows"] == 4
    assert row["explanation"] == "4 of 10 numbers are missing, such as 0-3"


async def test_rows_of_two_inputs_are_compared_when_both_are_there(system: OperatorSystem) -> None:
    """Either job may be the first to update a range: then the other's task compares, and none fails."""
    both = "[{from: {job: few}}, {from: {job: numbers}, trigger: true}]"
    await system.deploy(
        dag(
            "{kind: compare_rows, input: few, other: numbers, level: warn}",
            "{kind: compare_rows, input: few, other: numbers, tolerance: 4, name: nearly}",
            inputs=both,
        )
    )
    await system.run("d", "ask", start=0, end=9)
    assert [row["explanation"] for row in await system.rows("report") if "numbers" in row["check"]] == [
        "6 rows, and numbers has 10"
    ]
    states = await system.run("d", "ask", start=10, end=19)
    assert states["look"] == ["Completed"] * 4, await system.error("look")
    found = [(row["partition"], row["check"], row["passed"]) for row in await system.rows("report")]
    assert sorted(found) == [
        ("0-9", "compare_rows numbers", False),
        ("0-9", "nearly", True),
        ("10-19", "compare_rows numbers", True),
        ("10-19", "nearly", True),
    ]


async def test_an_input_that_is_not_followed_is_compared_as_it_is(system: OperatorSystem) -> None:
    check = "{kind: compare_rows, input: few, other: numbers, level: warn}"
    await system.deploy(dag(check, inputs="[{from: {job: few}}, {from: {job: numbers}, trigger: false}]"))
    await system.run("d", "ask", start=0, end=9)
    await system.run("d", "ask", start=10, end=19)
    explained = {row["partition"]: row["explanation"] for row in await system.rows("report")}
    assert explained == {"0-9": "6 rows, and numbers has 10", "10-19": "10 rows, and numbers has 20"}


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (
            "{kind: not_null, columns: [value]}",
            "not_null value: 1 rows with NULL, such as (block_number=3, value=None)",
        ),
        ("{kind: unique, columns: [value]}", "unique value: 1 rows more than keys, such as (value=7)"),
        ("{kind: continuous, column: value}", "continuous value: 1 of 9 numbers are missing, such as 6"),
        ("{kind: compare_rows, other: few, input: numbers}", "compare_rows few: 10 rows, and few has 0"),
        ("{kind: sql, query: SELECT value FROM numbers WHERE value > 8}", "sql: 1 rows, such as (value=9)"),
    ],
)
async def test_every_kind_of_check_can_fail_the_task(
    system: OperatorSystem, numbers: Numbers, check: str, message: str
) -> None:
    values = [1, 2, 3, None, 4, 5, 7, 7, 8, 9]
    numbers.value = values.__getitem__
    other = ", {from: {job: few}}" if "few" in check else ""
    await system.deploy(dag(check, inputs=f"[{{from: {{job: numbers}}}}{other}]"))
    states = await system.run("d", "ask", start=0, end=9)
    assert "Failed" in states["look"]
    assert message in await system.error("look")
    assert await system.partitions("report") == []


async def test_all_rows_are_checked_together_in_full_mode(system: OperatorSystem, numbers: Numbers) -> None:
    checks = ("{kind: continuous}", "{kind: row_count, min: 8, level: warn}", "{kind: unique, columns: [value]}")
    numbers.value = lambda number: number % 10
    await system.deploy(dag(*checks).replace("      checks:", "      mode: full\n      checks:"))
    await system.run("d", "ask", start=0, end=4)
    assert [row["passed"] for row in await system.rows("report") if row["check"] == "row_count"] == [False]
    await system.run("d", "ask", start=5, end=9)
    assert [(row["partition"], row["start"], row["passed"]) for row in await system.rows("report")] == [
        ("all", None, True)
    ] * 3
    await system.run("d", "ask", start=12, end=12)
    message = await system.error("look")
    assert "continuous block_number: 2 of 13 numbers are missing, such as 10-11" in message
    assert "unique value: 1 rows more than keys, such as (value=2)" in message


async def test_only_the_column_that_numbers_the_rows_must_fill_the_range(
    system: OperatorSystem, numbers: Numbers
) -> None:
    numbers.value = lambda number: 5000 + number + (number > 4)
    await system.deploy(dag("{kind: continuous, column: value, level: warn}", "{kind: continuous}"))
    await system.run("d", "ask", start=0, end=9)
    found = {row["check"]: row["explanation"] for row in await system.rows("report")}
    assert found == {
        "continuous value": "1 of 11 numbers are missing, such as 5005",
        "continuous block_number": "",
    }


@pytest.mark.parametrize("mode", ["partition", "full"])
async def test_a_column_of_nothing_but_null_is_not_continuous(
    system: OperatorSystem, numbers: Numbers, mode: str
) -> None:
    numbers.value = lambda number: 1 if number > 99 else None
    await system.deploy(
        dag("{kind: continuous, column: value}").replace("      checks:", f"      mode: {mode}\n      checks:")
    )
    states = await system.run("d", "ask", start=0, end=9)
    assert states["look"] == ["Failed"]
    assert "continuous value: 10 rows, and all of them with NULL" in await system.error("look")


async def test_a_check_that_cannot_run_warns_if_it_is_a_warning_and_stops_no_other(
    system: OperatorSystem, numbers: Numbers
) -> None:
    numbers.value = lambda number: f"t{number}"
    checks = [
        "{kind: range, column: value, min: 0}",
        "{kind: continuous, column: value}",
        "{kind: not_null, columns: [nothing]}",
        "{kind: sql, query: SELECT nothing AS n FROM numbers}",
    ]
    warn = [item.replace("}", ", level: warn}") for item in checks]
    await system.deploy(dag(*warn, "{kind: row_count, max: 3, level: warn}", "{kind: continuous}"))
    states = await system.run("d", "ask", start=0, end=9)
    assert states["look"] == ["Completed"], await system.error("look")
    rows = await system.rows("report")
    assert {row["check"] for row in rows if "could not be checked" in row["explanation"]} == {
        "range value",
        "continuous value",
        "not_null nothing",
        "sql",
    }
    assert {row["check"]: row["passed"] for row in rows if "could not" not in row["explanation"]} == {
        "row_count": False,
        "continuous block_number": True,
    }
    await system.deploy(dag(checks[1], "{kind: row_count, max: 3, level: warn}"))
    await system.run("d", "ask", start=10, end=19)
    assert "the column is string, and only whole numbers can be continuous" in await system.error("look")


@pytest.mark.parametrize(
    ("check", "field", "message"),
    [
        ("{kind: not_null, columns: [a], input: numbrs}", "jobs[3].config.checks[0].input", "numbrs"),
        (
            "{kind: sql, query: SELECT 1 AS a FROM nothing}",
            "jobs[3].config.checks[0].query",
            "no table named",
        ),
        ("{kind: range, column: a}", "jobs[3].config.checks[0]", "needs `min`, `max` or both"),
        ("{kind: range, column: a, min: 3, max: 2}", "jobs[3].config.checks[0]", "`min` is greater than `max`"),
        (
            f"{{kind: range, column: a, min: 0, max: {10**38}}}",
            "jobs[3].config.checks[0].max",
            "too large for a number",
        ),
        ("{kind: range, column: a, min: .nan, max: 1}", "jobs[3].config.checks[0].min", "not finite"),
        ("{kind: range, column: a, min: 1, max: .inf}", "jobs[3].config.checks[0].max", "not finite"),
        (f"{{kind: range, column: a, min: {10**21}, max: 5}}", "jobs[3].config.checks[0]", "is greater than"),
        (f"{{kind: row_count, min: {2**63}}}", "jobs[3].config.checks[0].min", f"not {2**63 - 1} or less"),
        (f"{{kind: row_count, max: {10**21}}}", "jobs[3].config.checks[0].max", f"not {2**63 - 1} or less"),
        (
            f"{{kind: compare_rows, other: numbers, tolerance: {2**63}}}",
            "jobs[3].config.checks[0].tolerance",
            f"not {2**63 - 1} or less",
        ),
        ("{kind: row_count, min: 3, max: 2}", "jobs[3].config.checks[0]", "`min` is greater than `max`"),
        ("{kind: sum, column: a}", "jobs[3].config.checks[0].kind", "sum"),
    ],
)
async def test_a_check_that_cannot_work_is_refused_at_deploy(
    system: OperatorSystem, check: str, field: str, message: str
) -> None:
    with pytest.raises(InvalidDag) as refused:
        await system.deploy(dag(check))
    (problem,) = refused.value.problems
    assert problem.field == field
    assert message in problem.reason


@pytest.mark.parametrize("end", [10**38, -(10**38), float("nan"), float("inf"), -float("inf")])
def test_a_bound_that_cannot_be_compared_is_refused(end: float) -> None:
    check = {"kind": "range", "column": "a", "min": end}
    (problem,) = SPEC.check_config({"checks": [check]})
    assert problem.path == ("checks", 0, "min")
    assert ("at most 38 digits" if isinstance(end, int) else "not finite") in problem.reason
