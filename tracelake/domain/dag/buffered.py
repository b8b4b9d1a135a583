"""Buffered datasets in YAML: entries of `publish` that declare a dataset of their own, for any number of writers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tracelake.domain.buffered import (
    COLUMN,
    MOST_COLUMNS,
    MOST_INDEXES,
    NO_KEY,
    PLAIN_TYPES,
    RESERVED,
    Column,
    Declaration,
    incompatible_changes,
    is_type,
)
from tracelake.domain.dag.form import Form, TextPattern, read_entries, refuse
from tracelake.domain.dag.problems import NO_EFFECT, Problems
from tracelake.domain.dag.yaml_nodes import Entries, Items, Node, Path, Scalar, Unreadable
from tracelake.domain.text.suggest import closest

MARKS = frozenset({"storage", "write_mode", "columns", "unique_key", "indexes"})
"""What only a declaration has: an entry with one of these is one."""
NAME = TextPattern(COLUMN, "the name of a column: lower snake case, at most 63 characters", code="bad_name")


@dataclass(frozen=True, slots=True)
class BufferedDraft:
    path: Path
    name: str | None
    declaration: Declaration
    read_roles: tuple[str, ...]


def read_declaration(form: Form, name: str | None, read_roles: tuple[str, ...]) -> BufferedDraft:
    """Everything that is wrong with it by itself is noted."""
    for field in ("job", "output"):
        if field in form.given:
            reason = "a declared dataset is written by whichever jobs name it in their outputs"
            form.problems.add((*form.path, field), "not_for_this", reason, "remove it", on_key=True)
    form.require("storage", "storage: postgres")
    form.require("write_mode", "write_mode: buffered")
    form.require("columns", "columns: {name: type}")
    form.require("unique_key", "the columns that identify a row")
    _only(form, "storage", "postgres")
    _only(form, "write_mode", "buffered")
    columns = _columns(form)
    kinds = {column.name: column for column in columns}
    unique_key = form.texts("unique_key", NAME, least=1)
    _check_key(form, unique_key, kinds)
    declared = Declaration(_not_null(columns, unique_key), unique_key, _indexes(form, kinds))
    return BufferedDraft(form.path, name, declared, read_roles)


def check_follows(draft: BufferedDraft, force: Declaration | None, problems: Problems) -> None:
    """Compares with the current declaration: only nullable columns and indexes can be added."""
    for change in incompatible_changes(force, draft.declaration) if force is not None else ():
        path = (*draft.path, "unique_key")
        if change.part != "unique_key":
            path = (*draft.path, "columns", change.part)
        problems.add(path, "incompatible_change", change.reason, change.suggestion)


def _only(form: Form, field: str, value: str) -> None:
    node = form.node(field)
    if node is None or isinstance(node, Unreadable):
        return
    if not (isinstance(node, Scalar) and node.value == value):
        reason = f"a dataset that is declared here has {field} {value!r}, and no other"
        form.problems.add((*form.path, field), "bad_choice", reason, f"{field}: {value}")


def _columns(form: Form) -> tuple[Column, ...]:
    node, path = form.node("columns"), (*form.path, "columns")
    if node is None or isinstance(node, Unreadable):
        return ()
    if not isinstance(node, Entries):
        refuse((node, path), "wrong_type", "a map of names and types", form.problems)
        return ()
    if not 1 <= len(node.entries) <= MOST_COLUMNS:
        form.problems.add(path, "bad_count", f"{len(node.entries)} columns", f"1 to {MOST_COLUMNS}")
    found = [_column(name, value, (*path, name), form.problems) for name, (_, value) in node.entries.items()]
    return tuple(column for column in found[:MOST_COLUMNS] if column is not None)


def _column(name: str, node: Node, path: Path, problems: Problems) -> Column | None:
    if NAME.pattern.fullmatch(name) is None:
        problems.add(path, "bad_name", f"{name[:80]!r} is not {NAME.words}", NAME.nearest(name), on_key=True)
    elif name in RESERVED:
        problems.add(path, "reserved", f"{name!r} is set by Trace in every row", "choose another name", on_key=True)
    nullable = True
    if isinstance(node, Entries):
        entries = read_entries(node, path, problems)
        assert entries is not None  # noqa: S101 - it was just looked at
        form = Form("column", entries, path, problems)
        form.require("type", f"one of: {', '.join(PLAIN_TYPES)}, decimal(p,s)")
        nullable = form.flag("nullable", default=True)
        inner = form.node("type")
        if inner is None:
            return None
        node, path = inner, (*path, "type")
    kind = _kind(node, path, problems)
    return None if kind is None else Column(name, kind, nullable)


def _kind(node: Node, path: Path, problems: Problems) -> str | None:
    if isinstance(node, Unreadable):
        return None
    value = node.value if isinstance(node, Scalar) else None
    if not isinstance(value, str):
        refuse((node, path), "wrong_type", "a type", problems, f"one of: {', '.join(PLAIN_TYPES)}, decimal(p,s)")
        return None
    kind = value.replace(" ", "")
    if not is_type(kind):
        near = closest(value, PLAIN_TYPES) or f"one of: {', '.join(PLAIN_TYPES)}, decimal(p,s)"
        problems.add(path, "unknown_type", f"there is no type {value[:80]!r}", near)
        return None
    return kind


def _check_key(form: Form, key: tuple[str, ...], columns: Mapping[str, Column]) -> None:
    for place, name in enumerate(key):
        path = (*form.path, "unique_key", place)
        if columns and name not in columns:
            form.problems.unknown(path, "column", name, columns)
        elif columns and columns[name].type in NO_KEY:
            reason = f"rows cannot be distinguished by {name!r}, which is {columns[name].type}"
            form.problems.add(path, "bad_key", reason, "use text, numbers, bytes, dates or timestamps")
        _warn_of_nullable(form, name)


def _warn_of_nullable(form: Form, column: str) -> None:
    columns = form.node("columns")
    _, node = columns.entries.get(column, (None, None)) if isinstance(columns, Entries) else (None, None)
    _, given = node.entries.get("nullable", (None, None)) if isinstance(node, Entries) else (None, None)
    if isinstance(given, Scalar) and given.value is True:
        reason = "`nullable` has no effect on a column of the unique key, which is never NULL"
        form.problems.warn((*form.path, "columns", column, "nullable"), NO_EFFECT, reason, "remove it")


def _not_null(columns: tuple[Column, ...], key: tuple[str, ...]) -> tuple[Column, ...]:
    """Columns of the key are never null."""
    return tuple(Column(column.name, column.type, column.nullable and column.name not in key) for column in columns)


def _indexes(form: Form, columns: Mapping[str, Column]) -> tuple[tuple[str, ...], ...]:
    found: list[tuple[str, ...]] = []
    for node, path in form.items("indexes"):
        names = _index(node, path, columns, form.problems)
        if names and names in found:
            form.problems.add(path, "duplicate", "this index stands here twice", "remove one")
        elif names:
            found.append(names)
    if len(found) > MOST_INDEXES:
        form.problems.add((*form.path, "indexes"), "bad_count", f"{len(found)} indexes", f"at most {MOST_INDEXES}")
    return tuple(found)


def _index(node: Node, path: Path, columns: Mapping[str, Column], problems: Problems) -> tuple[str, ...]:
    if not isinstance(node, Items) or not node.items:
        if not isinstance(node, Unreadable):
            refuse((node, path), "wrong_type", "a list of columns", problems, "such as [chain_id, event_time]")
        return ()
    names: list[str] = []
    for place, item in enumerate(node.items):
        value = item.value if isinstance(item, Scalar) else None
        if not isinstance(value, str) or (columns and value not in columns):
            problems.unknown((*path, place), "column", str(value), columns)
        elif columns and columns[value].type == "json":
            problems.add((*path, place), "bad_index", f"{value!r} is json, which has no order", "leave it out")
        elif value in names:
            problems.add((*path, place), "duplicate", f"{value!r} stands here twice", "remove one")
        else:
            names.append(value)
    return tuple(names)
