"""Collects the problems of a DAG: each with its place in the file, once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tracelake.domain.dag.yaml_nodes import Entries, Items, Mark, Node, Path, Unreadable, show_path
from tracelake.domain.text.suggest import closest
from tracelake.errors import InvalidDag, Problem

MAX_PROBLEMS = 100
"""More are not read by anybody, and looking for suggestions takes time."""
NO_EFFECT = "no_effect"
"""The code of a warning: the field is accepted and changes nothing."""


class Problems:
    def __init__(self, root: Node, found: Iterable[Problem] = ()) -> None:
        self._root = root
        self._found: list[Problem] = []
        self._warned: list[Problem] = []
        self._seen: set[tuple[int, int, str, str]] = set()
        for problem in found:
            self._keep(problem)

    @property
    def full(self) -> bool:
        return len(self._found) >= MAX_PROBLEMS

    def add(
        self,
        path: Path,
        code: str,
        reason: str,
        suggestion: str | None = None,
        *,
        at: Mark | None = None,
        on_key: bool = False,
    ) -> None:
        """`path` need not exist: a missing field is reported at what should hold it."""
        node, mark = self._find(path, on_key=on_key)
        if isinstance(node, Unreadable) and not on_key:
            return  # refused already: whatever else is wrong follows from that
        place = mark if at is None else at
        self._keep(Problem(place.line, place.column, show_path(path), reason, suggestion, code))

    def warn(self, path: Path, code: str, reason: str, suggestion: str | None = None) -> None:
        """Something at this place is accepted, and is not what the author may think it is."""
        _, mark = self._find(path, on_key=True)
        warning = Problem(mark.line, mark.column, show_path(path), reason, suggestion, code)
        if warning not in self._warned and len(self._warned) < MAX_PROBLEMS:
            self._warned.append(warning)

    def unknown(self, path: Path, what: str, name: str, known: Iterable[str], *, on_key: bool = False) -> None:
        """There is no such job, field, ...: with the nearest known name."""
        if not self.full:
            reason = f"there is no {what} {name[:128]!r}"
            self.add(path, f"unknown_{what}", reason, closest(name, known), on_key=on_key)

    def at(self, path: Path) -> bool:
        """Whether something is wrong at exactly this place."""
        field = show_path(path)
        return any(problem.field == field for problem in self._found)

    @property
    def warnings(self) -> tuple[Problem, ...]:
        return tuple(sorted(self._warned, key=lambda warning: (warning.line, warning.column)))

    def raise_if_any(self) -> None:
        if self._found:
            raise InvalidDag(self._all(), self.warnings)

    def _keep(self, problem: Problem) -> None:
        # One place is wrong in one way once: a bad default, say, is met again by every job.
        key = (problem.line, problem.column, problem.field, problem.code)
        if not self.full and key not in self._seen:
            self._seen.add(key)
            self._found.append(problem)

    def _all(self) -> Sequence[Problem]:
        ordered = sorted(self._found, key=lambda problem: (problem.line, problem.column, problem.code))
        if self.full:
            last = ordered[-1]
            reason = f"only the first {MAX_PROBLEMS} problems are shown"
            ordered.append(Problem(last.line, last.column, "", reason, "fix these first", "too_many_problems"))
        return ordered

    def _find(self, path: Path, *, on_key: bool) -> tuple[Node, Mark]:
        """The node at `path`, or the last one on the way to it, and where to point."""
        node, mark = self._root, self._root.mark
        for depth, step in enumerate(path, start=1):
            if isinstance(node, Entries) and isinstance(step, str) and step in node.entries:
                key_mark, node = node.entries[step]
                mark = key_mark if on_key and depth == len(path) else node.mark
            elif isinstance(node, Items) and isinstance(step, int) and step < len(node.items):
                node = node.items[step]
                mark = node.mark
            else:
                return node, mark
        return node, mark
