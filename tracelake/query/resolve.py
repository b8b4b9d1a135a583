"""What a query may read: its names, looked up at the Dispatcher, with the file lists that are known already kept.

A file list belongs to a generation as of a commit and never changes, so it is fetched once; which commit counts is
asked anew for every query.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from tracelake.data.current_partitions import in_force
from tracelake.data.files.needed import numbers_in
from tracelake.domain.filter.parse import from_json
from tracelake.domain.object_names import Folder, ObjectName
from tracelake.domain.ranges import Range
from tracelake.errors import Unavailable
from tracelake.query.checked_query import ColdFiles, FileFacts, Pin, Relation
from tracelake.wire.client import DispatcherClient
from tracelake.wire.markers import ColumnEntry
from tracelake.wire.query_messages import ColdFilesAnswer, Known, RelationRequest, RelationsAnswer, RelationsRequest
from tracelake.wire.query_messages import Relation as Told

KEPT: Final = 2_000
SENT: Final = 32
"""Of those, how many are said to be known: the ones used last."""


class Resolver:
    """Belongs to one event loop."""

    def __init__(self, dispatcher: DispatcherClient) -> None:
        self._dispatcher = dispatcher
        self._files: OrderedDict[Pin, ColdFiles] = OrderedDict()

    async def relations(
        self, tables: Sequence[RelationRequest], *, user: str | None = None, **fence: Any
    ) -> tuple[RelationsAnswer, Mapping[str, Relation]]:
        """For a user by his subject, or for an attempt by its fence: what was found, by name."""
        known = [Known(dataset_version=version, commit=commit) for version, commit in list(self._files)[-SENT:]]
        told = await self._dispatcher.relations(RelationsRequest(tables=list(tables), known=known, **fence), user)
        return told, {relation.name: self._relation(relation) for relation in told.relations}

    def _relation(self, told: Told) -> Relation:
        cold = None if told.cold is None else self._cold(told.cold)
        filters = tuple(from_json(dict(item)) for item in told.filters or ())
        return Relation(told.name, told.dataset_uuid, told.dataset_version, told.commit, told.hot, cold, filters)

    def _cold(self, part: ColdFilesAnswer) -> ColdFiles:
        pin = (part.dataset_version, part.commit)
        if part.partitions is not None:
            self._files[pin] = _files(pin, part)
        found = self._files.get(pin)
        if found is None:  # forgotten between the query and its answer
            raise Unavailable("a list of files is not there any more", hint="ask again")
        self._files.move_to_end(pin)
        while len(self._files) > KEPT:
            self._files.popitem(last=False)
        return found


def _files(pin: Pin, part: ColdFilesAnswer) -> ColdFiles:
    columns = None if part.columns is None else tuple(msgspec.convert(list(part.columns), list[ColumnEntry]))
    whole: list[ObjectName] = []
    cut: dict[tuple[Range, ...], tuple[ObjectName, ...]] = {}
    facts: dict[ObjectName, FileFacts] = {}
    for item, spans in in_force(part.partitions or ()):
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
