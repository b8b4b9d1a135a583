"""YAML 1.2 as nodes that remember where they stand.

Built from ruamel's events, not from its objects, because a DAG comes from anyone: nothing is constructed, nothing is
expanded, and reading stops where nesting goes too deep. Anchors, aliases, tags and duplicate keys are refused: a DAG
says a thing once, and `defaults` is how jobs share. Every refusal is a Problem with its line and column.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, assert_never

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from tracelake.domain.text.validation_messages import kind_of_value
from tracelake.errors import InvalidDag, Problem

MAX_BYTES = 256 * 1024
MAX_DEPTH = 32

Path = tuple[str | int, ...]

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_TRUTH = {word: word.lower() == "true" for word in ("true", "True", "TRUE", "false", "False", "FALSE")}
_INTEGER = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_PAST_UNICODE = re.compile(r"\\U(?!000|0010)")
_MOST = 10**38
"""The limit of integers: what a Spark decimal holds. Fields may have lower limits."""
_LONGEST_INTEGER = len(f"-{_MOST:#o}")


@dataclass(frozen=True, slots=True, order=True)
class Mark:
    """Counted from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Scalar:
    mark: Mark
    value: str | int | float | bool | None
    source: str
    """The text in the file, with quotes."""

    def mark_of(self, offset: int) -> Mark | None:
        """The position in the file of character `offset` of a text value; None if folding or escapes moved it."""
        text = str(self.value)
        for lead in (0, 1):
            if self.source[lead : lead + len(text)] == text and "\n" not in text:
                return Mark(self.mark.line, self.mark.column + lead + offset)
        return self._mark_in_block(text, offset) if self.source.startswith("|") else None

    def _mark_in_block(self, text: str, offset: int) -> Mark | None:
        row, column = text.count("\n", 0, offset), offset - (text.rfind("\n", 0, offset) + 1)
        lines, rows = self.source.splitlines(), text.split("\n")
        if row + 1 >= len(lines) or not lines[row + 1].endswith(rows[row]):
            return None
        return Mark(self.mark.line + 1 + row, len(lines[row + 1]) - len(rows[row]) + column + 1)


@dataclass(frozen=True, slots=True)
class Items:
    mark: Mark
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Entries:
    mark: Mark
    entries: dict[str, tuple[Mark, Node]]
    """By key: where the key stands, and its value."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A value that was already refused; it causes no further problems."""

    mark: Mark


Node = Scalar | Items | Entries | Unreadable


def read_yaml(text: str | bytes) -> tuple[Node, list[Problem]]:
    """The document and what is wrong with single values of it; raises InvalidDag where there is no document at all."""
    return _Builder(_decoded(text)).document()


def read_name(text: str) -> str | None:
    """What a document calls itself; the rest of it may not be YAML. InvalidDag: not even so much is."""
    return _Builder(_decoded(text)).name()


def plain(node: Node) -> Any:
    """The data alone."""
    match node:
        case Scalar(_, value):
            return value
        case Items(_, items):
            return [plain(item) for item in items]
        case Entries(_, entries):
            return {key: plain(value) for key, (_, value) in entries.items()}
        case Unreadable():
            return None
        case _:
            assert_never(node)


def kind_of(node: Node) -> str:
    """In words, for `... is text, not a list`."""
    match node:
        case Scalar(_, value):
            return kind_of_value(value)
        case Items():
            return "a list"
        case Entries():
            return "a map"
        case Unreadable():
            return "unreadable"
        case _:
            assert_never(node)


def show_path(path: Path) -> str:
    """`jobs[2].config.rpc_pool`; a key that is not a plain word is quoted."""
    shown = ""
    for step in path:
        if isinstance(step, int):
            shown += f"[{step}]"
        elif re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]{0,127}", step):
            shown += f".{step}" if shown else step
        else:
            shown += f"[{step[:80]!a}]"
    return shown


def _decoded(text: str | bytes) -> str:
    size = len(text) if isinstance(text, bytes) else len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_BYTES:
        raise _fatal(Mark(1, 1), "too_large", f"the file has {size} bytes", f"at most {MAX_BYTES}; split the DAG")
    return (_from_utf8(text) if isinstance(text, bytes) else text).removeprefix("\ufeff")


def _from_utf8(text: bytes) -> str:
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as refusal:
        before = text[: refusal.start].decode("utf-8")
        reason, hint = "this byte is not UTF-8", "save the file as UTF-8"
        raise _fatal(_mark_at(before, len(before)), "not_utf8", reason, hint) from None


def _fatal(mark: Mark, code: str, reason: str, suggestion: str | None = None) -> InvalidDag:
    return InvalidDag([Problem(mark.line, mark.column, "", reason, suggestion, code)])


def _mark_at(text: str, index: int) -> Mark:
    return Mark(text.count("\n", 0, index) + 1, index - (text.rfind("\n", 0, index) + 1) + 1)


class _Builder:
    def __init__(self, text: str) -> None:
        self._text = text
        self._events = self._guarded()
        self._problems: list[Problem] = []

    def document(self) -> tuple[Node, list[Problem]]:
        start = self._next_document()
        if start is None:
            raise _fatal(Mark(1, 1), "empty", "the file is empty", "start with `name:` and `jobs:`")
        if start.version not in {None, (1, 2)}:
            raise _fatal(_mark(start), "yaml_version", "DAGs are YAML 1.2", "remove the %YAML line")
        root = self._node(next(self._events), (), 1)
        second = self._next_document()
        if second is not None:
            raise _fatal(_mark(second), "several_documents", "a file holds one DAG", "remove the second `---`")
        return root, self._problems

    def name(self) -> str | None:
        """The value of `name` at the top; what comes after it is not read."""
        if self._next_document() is None or not isinstance(next(self._events), MappingStartEvent):
            return None
        while not isinstance(event := next(self._events), MappingEndEvent):
            key, value = self._node(event, (), 2), self._node(next(self._events), (), 2)
            if isinstance(key, Scalar) and key.value == "name":
                return value.value if isinstance(value, Scalar) and isinstance(value.value, str) else None
        return None

    def _guarded(self) -> Iterator[Event]:
        try:
            yield from YAML(typ="safe", pure=True).parse(self._text)
        except MarkedYAMLError as refusal:
            raise _syntax(refusal, self._text) from None
        except (YAMLError, ValueError) as refusal:  # a character that YAML forbids; an escape past the end of Unicode
            escape = _PAST_UNICODE.search(self._text)
            position = getattr(refusal, "position", escape.start() if escape else 0)
            reason = "YAML does not allow this character"
            raise _fatal(_mark_at(self._text, position), "bad_character", reason) from None

    def _next_document(self) -> DocumentStartEvent | None:
        return next((event for event in self._events if isinstance(event, DocumentStartEvent)), None)

    def _node(self, event: Event, path: Path, depth: int) -> Node:
        mark = _mark(event)
        if depth > MAX_DEPTH:
            raise _fatal(mark, "too_deep", f"nested more than {MAX_DEPTH} levels deep")
        refused = self._refuse_extras(event, mark, path)
        if isinstance(event, MappingStartEvent):
            node: Node = self._entries(mark, path, depth)
        elif isinstance(event, SequenceStartEvent):
            node = Items(mark, tuple(self._items(path, depth)))
        elif isinstance(event, ScalarEvent):
            node = self._scalar(event, mark, path)
        else:
            node = Unreadable(mark)
        return Unreadable(mark) if refused else node

    def _refuse_extras(self, event: Event, mark: Mark, path: Path) -> bool:
        if isinstance(event, AliasEvent) or (isinstance(event, NodeEvent) and event.anchor):
            self._add(mark, "anchor", path, "anchors (&) and aliases (*) are not allowed", "share by `defaults`")
            return isinstance(event, AliasEvent)
        if getattr(event, "tag", None) is not None:
            self._add(mark, "tag", path, "tags (!) are not allowed", "write the value plainly, in quotes if it is text")
            return True
        return False

    def _items(self, path: Path, depth: int) -> Iterator[Node]:
        index = 0
        while not isinstance(event := next(self._events), SequenceEndEvent):
            yield self._node(event, (*path, index), depth + 1)
            index += 1

    def _entries(self, mark: Mark, path: Path, depth: int) -> Entries:
        entries: dict[str, tuple[Mark, Node]] = {}
        while not isinstance(event := next(self._events), MappingEndEvent):
            key = self._node(event, path, depth + 1)
            name = key.value if isinstance(key, Scalar) else None
            value = self._node(next(self._events), (*path, name if isinstance(name, str) else "?"), depth + 1)
            if not isinstance(name, str):
                self._add(key.mark, "bad_key", path, f"a key must be text, not {kind_of(key)}", "put it in quotes")
            elif name in entries:
                first = entries[name][0].line
                self._add(
                    key.mark, "duplicate_key", (*path, name), f"already given in line {first}", "keep one of the two"
                )
            else:
                entries[name] = (key.mark, _placed(value, key.mark))
        return Entries(mark, entries)

    def _scalar(self, event: ScalarEvent, mark: Mark, path: Path) -> Node:
        source = self._text[event.start_mark.index : event.end_mark.index]
        if not event.implicit[0]:
            return self._text_scalar(event.value, mark, path, source)
        text = event.value
        if text in _NULL:
            return Scalar(mark, None, source)
        if text in _TRUTH:
            return Scalar(mark, _TRUTH[text], source)
        if _INTEGER.fullmatch(text) or _FLOAT.fullmatch(text) or _NOT_FINITE.fullmatch(text):
            return self._number(text, mark, path, source)
        if text == "<<":
            self._add(mark, "anchor", path, "merge keys (<<) are not allowed", "share by `defaults`")
            return Unreadable(mark)
        return self._text_scalar(text, mark, path, source)

    def _number(self, text: str, mark: Mark, path: Path, source: str) -> Node:
        value = _number_value(text)
        if value is None:
            reason = f"{text[:40]} is too large for a number, or not finite"
            self._add(mark, "bad_number", path, reason, "put it in quotes if it is text")
            return Unreadable(mark)
        return Scalar(mark, value, source)

    def _text_scalar(self, text: str, mark: Mark, path: Path, source: str) -> Node:
        if any(letter == "\x00" or "\ud800" <= letter <= "\udfff" for letter in text):
            self._add(mark, "bad_character", path, "the text holds a character that no database can store")
            return Unreadable(mark)
        return Scalar(mark, text, source)

    def _add(self, mark: Mark, code: str, path: Path, reason: str, suggestion: str | None = None) -> None:
        self._problems.append(Problem(mark.line, mark.column, show_path(path), reason, suggestion, code))


def _placed(value: Node, key: Mark) -> Node:
    """A value that was left out stands, for the parser, wherever the next token is; for people, at its key."""
    return Scalar(key, None, "") if isinstance(value, Scalar) and not value.source else value


def _number_value(text: str) -> int | float | None:
    if _INTEGER.fullmatch(text):
        base = {"0o": 8, "0x": 16}.get(text[:2], 10)
        if len(text) > _LONGEST_INTEGER:  # before int(): it refuses very long texts, and is slow on long ones
            return None
        value = int(text, base)
        return value if -_MOST < value < _MOST else None
    if _FLOAT.fullmatch(text):
        number = float(text)
        return number if math.isfinite(number) else None
    return None


def _mark(event: Event) -> Mark:
    return Mark(event.start_mark.line + 1, event.start_mark.column + 1)


def _syntax(refusal: MarkedYAMLError, text: str) -> InvalidDag:
    found = refusal.problem_mark or refusal.context_mark
    mark = Mark(1, 1) if found is None else Mark(found.line + 1, found.column + 1)
    if found is not None and text[found.index : found.index + 1] == "\t":
        return _fatal(mark, "tab", "a tab cannot indent", "use spaces")
    reason = ", ".join(part for part in (refusal.context, refusal.problem) if part)
    return _fatal(mark, "bad_yaml", f"this is not YAML: {reason}", _yaml_hint(refusal))


def _yaml_hint(refusal: MarkedYAMLError) -> str | None:
    problem = refusal.problem or ""
    if "mapping values are not allowed" in problem:
        return "put a value that holds ': ' in quotes, or check the indentation"
    if "cannot start any token" in problem:
        return "put the value in quotes"
    if "block end" in problem or "<block end>" in problem:
        return "check the indentation of this line"
    return None


def name_in(text: str) -> str | None:
    """What the document calls itself, if it does; what else is wrong with it is not asked. InvalidDag: no YAML."""
    root, _ = read_yaml(text)
    found = plain(root).get("name") if isinstance(root, Entries) else None
    return found if isinstance(found, str) else None
