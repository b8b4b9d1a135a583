"""Every statement that changes a task's state makes only changes that the table in `domain/task.py` has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import get_args, get_type_hints

import pytest
import sqlglot
from sqlglot import exp

from tracelake.domain.task import TRANSITIONS, NotClaimedReason, TaskState
from tracelake.store.migrate import MIGRATIONS
from tracelake.store.queries import FOLDER, queries
from tracelake.wire.task.lifecycle import NotClaimed, TaskStatus
from tracelake.wire.task.outputs import CompleteRequest

FILES = sorted(path.stem for path in FOLDER.glob("*.sql"))
ALLOWED = {(before, after) for before, to in TRANSITIONS.items() for after in to}
COMPLETIONS = {TaskState(status) for status in get_args(get_type_hints(CompleteRequest)["status"])}
"""The states that an attempt may report: `complete_tasks` takes them as a parameter."""


def updates_of_tasks() -> Iterator[tuple[str, exp.Update]]:
    for file in FILES:
        for name, statement in queries(file).items():
            if "UPDATE tasks" in statement:
                tree = sqlglot.parse_one(statement, dialect="postgres")
                yield from ((f"{file}.{name}", found) for found in tree.find_all(exp.Update) if is_of_tasks(found))


def is_of_tasks(update: exp.Update) -> bool:
    return isinstance(update.this, exp.Table) and update.this.name == "tasks"


def changes_of(update: exp.Update) -> set[tuple[TaskState, TaskState]]:
    """From each state in which the statement finds a task to each that it sets."""
    to = set[TaskState]()
    for assignment in update.expressions:
        if assignment.this.name == "status":
            value = assignment.expression
            to = {TaskState(value.name)} if isinstance(value, exp.Literal) else COMPLETIONS
    found = states_found(update) if to else set()
    return {(before, after) for before in found for after in to if before != after}


def states_found(update: exp.Update) -> set[TaskState]:
    where = update.args["where"].this
    names = {"", update.this.alias_or_name}
    found = {state for state in TaskState if holds(where, state, names) is not False}
    return states_awaiting_completion() if found == set(TaskState) and is_completion(update) else found


def is_completion(update: exp.Update) -> bool:
    """Its tasks come from `ending`, the attempts that `awaits_completion` lets report."""
    return any(table.name == "ending" for table in update.find_all(exp.Table))


def states_awaiting_completion() -> set[TaskState]:
    migrations = "".join(path.read_text() for path in sorted((MIGRATIONS / "state").glob("*.sql")))
    *_, body = re.findall(r"FUNCTION awaits_completion\(task tasks\).*?RETURN (.*?);", migrations, re.DOTALL)
    where = sqlglot.parse_one(body.replace("(task).", "task."), dialect="postgres")
    return {state for state in TaskState if holds(where, state, {"task"}) is not False}


def holds(condition: exp.Expr, state: TaskState, names: set[str]) -> bool | None:
    """Whether it holds for a task in this state; None: other columns decide."""
    match condition:
        case exp.Paren():
            return holds(condition.this, state, names)
        case exp.Not():
            inner = holds(condition.this, state, names)
            return None if inner is None else not inner
        case exp.And() | exp.Or():
            decides = isinstance(condition, exp.Or)
            sides = [holds(side, state, names) for side in (condition.left, condition.right)]
            return decides if decides in sides else (None if None in sides else not decides)
        case exp.Is(expression=exp.Boolean()):
            inner = holds(condition.this, state, names)
            return None if inner is None else inner is bool(condition.expression.this)
        case exp.EQ() | exp.In() if is_status(condition.this, names):
            values = condition.expressions or [condition.expression]
            return state in {TaskState(value.name) for value in values}
        case _:
            return None


def is_status(column: exp.Expr, names: set[str]) -> bool:
    return isinstance(column, exp.Column) and column.name == "status" and column.table in names


@pytest.mark.parametrize(("name", "update"), [pytest.param(*found, id=found[0]) for found in updates_of_tasks()])
def test_a_statement_changes_states_only_as_the_table_allows(name: str, update: exp.Update) -> None:
    assert changes_of(update) <= ALLOWED, f"{name}: its WHERE must name the states from which it may come"


def test_each_change_in_the_table_is_made_by_a_statement() -> None:
    made = {change for _, update in updates_of_tasks() for change in changes_of(update)}
    assert made == ALLOWED


@pytest.mark.parametrize(
    "wrong",
    [
        "UPDATE tasks t SET status = 'Running' FROM due WHERE t.id = due.id",  # from any state
        "UPDATE tasks SET status = 'Completed' WHERE id = $1 AND status IN ('Queued', 'Running')",
        "UPDATE tasks t SET status = 'Queued' WHERE t.id = $1 AND NOT (t.status = 'Queued')",
    ],
)
def test_a_statement_that_makes_another_change_is_found(wrong: str) -> None:
    update = sqlglot.parse_one(wrong, dialect="postgres")
    assert isinstance(update, exp.Update)
    assert not changes_of(update) <= ALLOWED


def test_messages_have_the_states_of_the_table() -> None:
    assert set(get_args(TaskStatus)) == set(TaskState)
    assert {*get_args(get_type_hints(NotClaimed)["reason"])} == set(NotClaimedReason)


def test_a_word_that_is_no_state_is_found() -> None:
    update = sqlglot.parse_one("UPDATE tasks SET status = 'Done' WHERE status = 'Running'", dialect="postgres")
    assert isinstance(update, exp.Update)
    with pytest.raises(ValueError, match="'Done' is not a valid TaskState"):
        changes_of(update)
