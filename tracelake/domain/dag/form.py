"""Reads the fields of a YAML mapping by their types; faults are recorded with their place, and reading continues.

A reader gives its default both where a field is absent and where it was refused: in the second case the DAG is thrown
away in the end, and the default keeps later checks from complaining about the same thing again.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from tracelake.domain.cutover import CutoverLimit, read_limit
from tracelake.domain.dag.fields import FIELDS
from tracelake.domain.dag.problems import Problems
from tracelake.domain.dag.yaml_nodes import Entries, Items, Node, Path, Scalar, Unreadable, kind_of, plain
from tracelake.domain.text.suggest import nearest, snake_case

MAX_NAME = 128
DAY = 86_400

D = TypeVar("D")
E = TypeVar("E", bound=StrEnum)
_DURATION_UNITS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_DURATION = re.compile(r"(?:([0-9]{1,9})d)?(?:([0-9]{1,9})h)?(?:([0-9]{1,9})m)?(?:([0-9]{1,9})s)?")
_SECONDS = re.compile(r"[0-9]{1,9}")
"""Durations as people write them: `30s`, `5m`, `1h30m`, `2d`, or a number of seconds."""


@dataclass(frozen=True, slots=True)
class TextPattern:
    """What a text must look like, in signs and in words."""

    pattern: re.Pattern[str]
    words: str
    nearest: Callable[[str], str | None] = lambda _: None
    code: str = "bad_value"


NAME = TextPattern(
    re.compile(rf"[a-z][a-z0-9_]{{0,{MAX_NAME - 1}}}"),
    f"lower snake case, at most {MAX_NAME} characters",
    lambda text: f"such as {near}" if (near := snake_case(text)) else None,
    "bad_name",
)
ANY_TEXT = TextPattern(re.compile(r"(?s).*\S.*"), "text that is not blank")


class Form:
    def __init__(self, kind: str, node: Entries, path: Path, problems: Problems) -> None:
        self.path = path
        self.problems = problems
        self._known = {name: value for name, (_, value) in node.entries.items() if name in FIELDS[kind]}
        self._fallback: Form | None = None
        for key in node.entries:
            if key not in self._known:
                problems.unknown((*path, key), "field", key, FIELDS[kind], on_key=True)

    @property
    def given(self) -> frozenset[str]:
        """What the map itself has; shared defaults do not count."""
        return frozenset(self._known)

    def falling_back_on(self, other: Form | None) -> Form:
        """The same form, where `other` answers for what is absent."""
        form = copy.copy(self)
        form._fallback = other  # noqa: SLF001 - the same class
        return form

    def require(self, name: str, suggestion: str | None = None) -> None:
        if self._find(name) is None:
            self.problems.add((*self.path, name), "missing", f"`{name}` is required", suggestion)

    def text(self, name: str, shape: TextPattern, default: D) -> str | D:
        found = self._find(name)
        value = None if found is None else read_text(*found, shape, self.problems)
        return default if value is None else value

    def texts(self, name: str, shape: TextPattern, *, least: int = 0) -> tuple[str, ...]:
        """A list without repetition."""
        node = self.node(name)
        if isinstance(node, Items) and len(node.items) < least:
            self.problems.add((*self.path, name), "empty", f"at least {least} is wanted here", "fill it, or remove it")
        values: list[str] = []
        for item, path in self.items(name):
            value = read_text(item, path, shape, self.problems)
            if value is not None and value in values:
                self.problems.add(path, "duplicate", f"{value!r} stands here twice", "remove one")
            elif value is not None:
                values.append(value)
        return tuple(values)

    def choice(self, name: str, choices: type[E], default: D) -> E | D:
        found = self._find(name)
        if found is None or isinstance(found[0], Unreadable):
            return default
        node, path = found
        value = node.value if isinstance(node, Scalar) else None
        if isinstance(value, str) and value in set(choices):
            return choices(value)
        suggestion = nearest(value, list(choices)) if isinstance(value, str) else None
        self._refuse(node, path, "bad_choice", f"one of {', '.join(choices)}", suggestion)
        return default

    def whole(self, name: str, default: D, *, least: int, most: int) -> int | D:
        found = self._find(name)
        if found is None or isinstance(found[0], Unreadable):
            return default
        node, path = found
        value = node.value if isinstance(node, Scalar) else None
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
            return value
        self._refuse(node, path, "bad_number", f"a whole number from {least} to {most}")
        return default

    def seconds(self, name: str, default: D, *, least: int = 1, most: int = 30 * DAY) -> int | D:
        found = self._find(name)
        if found is None or isinstance(found[0], Unreadable):
            return default
        node, path = found
        value = _seconds(node)
        if value is not None and least <= value <= most:
            return value
        span = f"from {format_duration(least)} to {format_duration(most)}"
        self._refuse(node, path, "bad_duration", f"a duration {span}", "such as 30s, 5m, 1h30m, or whole seconds")
        return default

    def limit(self, name: str) -> CutoverLimit | None:
        """A count, or a percentage."""
        found = self._find(name)
        if found is None or isinstance(found[0], Unreadable):
            return None
        node, path = found
        value = read_limit(node.value) if isinstance(node, Scalar) else None
        if value is None:
            wanted = "a number of rows, or a percentage from 0% to 100%"
            self._refuse(node, path, "bad_limit", wanted, "such as 0, 500, 1% or 0.5%")
        return value

    def flag(self, name: str, default: bool) -> bool:
        found = self._find(name)
        if found is None or isinstance(found[0], Unreadable):
            return default
        node, path = found
        if isinstance(node, Scalar) and isinstance(node.value, bool):
            return node.value
        self._refuse(node, path, "wrong_type", "true or false")
        return default

    def data(self, name: str) -> dict[str, Any]:
        """A free map, such as an operator's config."""
        node = self._entries(name)
        return {} if node is None else plain(node[0])

    def form(self, name: str) -> Form | None:
        """A map with fields of its own, called as the field is."""
        found = self._entries(name)
        return None if found is None else Form(name, *found, self.problems)

    def items(self, name: str) -> Sequence[tuple[Node, Path]]:
        found = self._find(name)
        if found is None or isinstance(found[0], Unreadable):
            return ()
        node, path = found
        if isinstance(node, Items):
            return [(item, (*path, index)) for index, item in enumerate(node.items)]
        self._refuse(node, path, "wrong_type", "a list")
        return ()

    def node(self, name: str) -> Node | None:
        found = self._find(name)
        return None if found is None else found[0]

    def place(self, name: str) -> Path:
        """Where the field is given, here or in the shared defaults; else where it would be."""
        found = self._find(name)
        return (*self.path, name) if found is None else found[1]

    def _find(self, name: str) -> tuple[Node, Path] | None:
        if name in self._known:
            return self._known[name], (*self.path, name)
        return None if self._fallback is None else self._fallback._find(name)  # noqa: SLF001 - the same class

    def _entries(self, name: str) -> tuple[Entries, Path] | None:
        found = self._find(name)
        if found is None or isinstance(found[0], Unreadable):
            return None
        node, path = found
        if isinstance(node, Entries):
            return node, path
        known = FIELDS.get(name)
        self._refuse(node, path, "wrong_type", "a map", f"its fields: {', '.join(known)}" if known else None)
        return None

    def _refuse(self, node: Node, path: Path, code: str, wanted: str, suggestion: str | None = None) -> None:
        refuse((node, path), code, wanted, self.problems, suggestion)


def read_text(node: Node, path: Path, shape: TextPattern, problems: Problems) -> str | None:
    if isinstance(node, Unreadable):
        return None
    value = node.value if isinstance(node, Scalar) else None
    if not isinstance(value, str):
        hint = f'write "{value}"' if isinstance(value, int | float) else None
        refuse((node, path), "wrong_type", "text", problems, hint)
        return None
    if shape.pattern.fullmatch(value) is None:
        problems.add(path, shape.code, f"{value[:80]!r} is not {shape.words}", shape.nearest(value))
        return None
    return value


def read_entries(node: Node, path: Path, problems: Problems, suggestion: str | None = None) -> Entries | None:
    if isinstance(node, Entries):
        return node
    if not isinstance(node, Unreadable):
        refuse((node, path), "wrong_type", "a map", problems, suggestion)
    return None


def refuse(found: tuple[Node, Path], code: str, wanted: str, problems: Problems, suggestion: str | None = None) -> None:
    node, path = found
    if isinstance(node, Scalar) and node.value is None:
        problems.add(path, "empty", f"nothing is given here; {wanted} is wanted", "give a value, or remove the field")
    else:
        problems.add(path, code, f"this is {kind_of(node)}, not {wanted}", suggestion)


def _seconds(node: Node) -> int | None:
    match node:
        case Scalar(_, bool()):
            return None
        case Scalar(_, int(value)):
            return value
        case Scalar(_, float(value)) if value.is_integer():
            return int(value)
        case Scalar(_, str(value)):
            return parse_duration(value)
        case _:
            return None


def parse_duration(text: str) -> int | None:
    """Seconds; None if it is not a duration."""
    if _SECONDS.fullmatch(text):
        return int(text)
    match = _DURATION.fullmatch(text)
    if match is None or not text:
        return None
    return sum(
        int(amount) * size for amount, size in zip(match.groups(), _DURATION_UNITS.values(), strict=True) if amount
    )


def format_duration(seconds: int) -> str:
    """The shortest text that `parse_duration` reads back."""
    parts = []
    for unit, size in _DURATION_UNITS.items():
        amount, seconds = divmod(seconds, size)
        if amount:
            parts.append(f"{amount}{unit}")
    return "".join(parts) or "0s"
