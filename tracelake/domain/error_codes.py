"""Errors by their stable code: how one that arrives as JSON is raised again, and whether it is the platform's."""

from __future__ import annotations

from collections.abc import Iterator

from tracelake.errors import TraceError


def is_platform_fault(code: str | None, *, retryable: bool) -> bool:
    """Whether a failure with this code, as a task reports it, is the platform's."""
    return retryable and code in PLATFORM_CODES


def _tree(kind: type[TraceError]) -> Iterator[type[TraceError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _tree(below)


OWN = [kind for kind in _tree(TraceError) if kind.__module__ == TraceError.__module__ and "code" in vars(kind)]
"""Of the tree, whatever else is imported. An error without a code of its own is raised again as the one above it."""
KINDS = {kind.code: kind for kind in OWN}
PLATFORM_KINDS = {code: kind for code, kind in KINDS.items() if kind.platform}
PLATFORM_CODES = frozenset(PLATFORM_KINDS)
