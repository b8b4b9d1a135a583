"""Looks up a query's tables at the Dispatcher; caches their lists of files.

A list of files belongs to a generation as of a commit and never changes, so it is fetched once; the current commit is
asked for with every query.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from tracelake.data.current_partitions import current_partitions
from tracelake.data.files.needed import numbers_in
from tracelake.domain.access.object_names import Folder, ObjectName
from tracelake.domain.filter.from_json import from_json
from tracelake.domain.ranges import Range
from tracelake.errors import Unavailable
from tracelake.query.checked_query import ColdFiles, FileFacts, Pin, Relation
from tracelake.wire.client import DispatcherClient
from tracelake.wire.internal.queries import (
    ColdFilesAnswer,
    Known,
    RelationAnswer,
    RelationRequest,
    RelationsAnswer,
    RelationsRequest,
)
from tracelake.wire.service.headers import ServiceUser
from tracelake.wire.task.markers import ColumnEntry

KEPT: Final = 2_000
SENT: Final = 32
"""How many cached lists a request mentions: those used last."""


class Resolver:
    """Belongs to one event loop."""

    def __init__(self, dispatcher: DispatcherClient) -> None:
        self._dispatcher = dispatcher
        self._files: OrderedDict[Pin, ColdFiles] = OrderedDict()

    async def relations(
        self, tables: Sequence[RelationRequest], *, user: ServiceUser | None = None, **fence: Any
    ) -> tuple[RelationsAnswer, Mapping[str, Relation]]:
        """Return the relations by name, for a user or for the fence of an attempt."""
        known = [Known(dataset_version=version, commit=commit) for version, commit in list(self._files)[-SENT:]]
        answer = await self._dispatcher.relations(RelationsRequest(tables=list(tables), known=known, **fence), user)
        return answer, {relation.name: self._relation(relation) for relation in answer.relations}

    async def readable(self, names: Iterable[str], user: ServiceUser) -> set[str]:
        """Which of these tables the user may read now."""
        tables = [RelationRequest(name=name) for name in names]
        answer = await self._dispatcher.relations(RelationsRequest(tables=tables, files=False), user)
        return {relation.name for relation in answer.relations}

    def _relation(self, answer: RelationAnswer) -> Relation:
        cold = None if answer.cold is None else self._cold(answer.cold)
        filters = tuple(from_json(dict(item)) for item in answer.filters or ())
        return Relation(
            answer.name,
            answer.dataset_uuid,
            answer.dataset_version,
            answer.commit,
            answer.hot,
            cold,
            filters,
            behind=answer.behind,
        )

    def _cold(self, part: ColdFilesAnswer) -> ColdFiles:
        pin = (part.dataset_version, part.commit)
        if part.partitions is not None:
            self._files[pin] = cold_files(part)
        files = self._files.get(pin)
        if files is None:  # evicted between the request and its answer
            raise Unavailable("a list of files is no longer cached", hint="retry")
        self._files.move_to_end(pin)
        while len(self._files) > KEPT:
            self._files.popitem(last=False)
        return files


def cold_files(part: ColdFilesAnswer) -> ColdFiles:
    pin = part.dataset_version, part.commit
    columns = None if part.columns is None else tuple(msgspec.convert(list(part.columns), list[ColumnEntry]))
    whole: list[ObjectName] = []
    cut: dict[tuple[Range, ...], tuple[ObjectName, ...]] = {}
    facts: dict[ObjectName, FileFacts] = {}
    for item, spans in current_partitions(part.partitions or ()):
        folder = Folder.parse(item.location)
        names = [folder.object(str(file["name"])) for file in item.files]
        facts |= {name: _facts(file) for name, file in zip(names, item.files, strict=True)}
        if spans is None:
            whole += names
        else:
            cut[spans] = (*cut.get(spans, ()), *names)
    size, rows = sum(fact.bytes for fact in facts.values()), sum(fact.rows for fact in facts.values())
    return ColdFiles(pin, columns, tuple(whole), size, rows, cut, facts)


def _facts(file: Mapping[str, Any]) -> FileFacts:
    return FileFacts(int(file.get("bytes", 0)), int(file.get("rows", 0)), numbers_in(file))
