"""Which two commits are compared: those that the caller names, or what is served and what follows it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from tracelake.errors import InvalidRequest, NotFound
from tracelake.wire.user.datasets import DatasetDetail, GenerationRow
from tracelake.wire.user.diff import DiffQuery
from tracelake.wire.user.releases import ReleaseComparison

SHORTEST: Final = 4
"""Of the beginning of an id: shorter ones would be taken for commits too often."""

DIGITS: Final = 18
"""Of a commit; a longer number is none, and would not fit into the database."""


def sides_of(dataset: DatasetDetail, query: DiffQuery, built: ReleaseComparison | None = None) -> tuple[int, int]:
    """The commits. Whether there are such is found when they are read."""
    if built is not None:
        return _last_of(dataset, built.former), _last_of(dataset, built.generation)
    served = next((item for item in dataset.generations if item.current and item.last_commit), None)
    if query.a is not None and query.b is not None:
        return _commit(dataset, query.a, "query a"), _commit(dataset, query.b, "query b")
    if served is None or served.last_commit is None:
        raise NotFound("no generation with a commit is served", where="/dataset", hint="name two commits")
    if query.a is not None or query.b is not None:
        named = _commit(dataset, query.a or query.b or "", "query a" if query.a else "query b")
        return (named, served.last_commit) if query.a is not None else (served.last_commit, named)
    newest = max((item.last_commit or 0 for item in dataset.generations), default=0)
    if newest > served.last_commit:
        return served.last_commit, newest
    return _before(dataset, served, served.last_commit), served.last_commit


def _last_of(dataset: DatasetDetail, version: UUID) -> int:
    last = next((item.last_commit for item in dataset.generations if item.dataset_version == version), None)
    if last is None:
        raise NotFound(
            f"generation {version} has no commit yet",
            where="query release",
            hint="`trace release show` says how far it is built",
        )
    return last


def _before(dataset: DatasetDetail, generation: GenerationRow, commit: int) -> int:
    known = [item.commit for item in dataset.commits if item.dataset_version == generation.dataset_version]
    before = max((number for number in known if number < commit), default=None)
    if before is None:
        raise NotFound(
            f"commit {commit} is the only recent one of what is served: there is nothing to compare it with",
            where="query a",
            hint="name two commits, or two generations",
        )
    return before


def _commit(dataset: DatasetDetail, side: str, where: str) -> int:
    if side.isascii() and side.isdecimal() and len(side) <= DIGITS:
        return int(side)
    found = [item for item in dataset.generations if str(item.dataset_version).startswith(side.lower())]
    if len(side) < SHORTEST or not found:
        raise NotFound(
            f"{side!r} is neither a commit nor the beginning of a generation's id",
            where=where,
            hint=f"generations: {_listed(dataset.generations)}",
        )
    if len(found) > 1:
        raise InvalidRequest(
            f"{len(found)} generations begin with {side!r}", where=where, hint=f"one of {_listed(found)}"
        )
    if found[0].last_commit is None:
        raise NotFound(f"generation {found[0].dataset_version} has no commit", where=where)
    return found[0].last_commit


def _listed(generations: Sequence[GenerationRow]) -> str:
    return ", ".join(str(item.dataset_version) for item in generations[:5]) or "none"
