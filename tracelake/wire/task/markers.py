"""The marker of an attempt's output: `_SUCCESS`, the last object that is written, listing all the others.

It is in the attempt's folder beside its files. Their writer makes it (`data/files/parquet_writer.py`); before it
commits, the Dispatcher compares it with the files that are there
(`dispatcher/tasks/completion/verify_outputs.py`). Files without a marker are garbage.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final
from uuid import UUID

import msgspec

from tracelake.domain.access.object_names import Folder, ObjectName
from tracelake.errors import InvalidRequest
from tracelake.wire.message import Message, Number, ShortText

MARKER: Final = "_SUCCESS"
NUMBER: Final = "block_number"
"""The column that has the position of a row within a range, if there is one."""
ADDRESS: Final = "address"
"""The column that has the contract of a row, in logs and in decoded events."""


class FileEntry(Message, frozen=True):
    name: ShortText
    """Within the attempt's folder."""
    rows: Number
    bytes: Number
    sha256: ShortText
    numbers: tuple[int, int] | None = None
    """The least and the greatest block number in it, if its writer knows: a query for others does not open it."""


class ColumnEntry(Message, frozen=True):
    name: ShortText
    type: ShortText
    """As Arrow writes it."""


class Marker(Message, frozen=True):
    task_id: UUID
    attempt: int
    dataset_uuid: UUID
    dataset_version: UUID
    files: list[FileEntry]
    columns: list[ColumnEntry]

    @property
    def schema_hash(self) -> str:
        return hash_of_schema(self.columns)


def attempt_folder(storage_location: str, task_id: UUID, attempt: int) -> Folder:
    """Where an attempt may write: a folder of its own below the generation. A loser leaves garbage, never data."""
    return Folder.parse(storage_location).folder("attempts", str(task_id), str(attempt))


def marker_in(folder: Folder) -> ObjectName:
    return folder.object(MARKER)


def hash_of_schema(columns: Iterable[ColumnEntry]) -> str:
    """Names and types; neither the order of columns nor whether a value may be missing makes another schema."""
    pairs = sorted((column.name, column.type) for column in columns)
    return hashlib.sha256(msgspec.json.encode(pairs)).hexdigest()


def in_words(columns: Iterable[ColumnEntry]) -> str:
    return ", ".join(f"{column.name} {column.type}" for column in sorted(columns, key=lambda item: item.name))


def encode_marker(marker: Marker) -> bytes:
    return msgspec.json.encode(marker)


def decode_marker(body: bytes) -> Marker:
    try:
        return msgspec.json.decode(body, type=Marker)
    except msgspec.DecodeError as wrong:
        raise InvalidRequest(f"the marker cannot be read: {wrong}", where="/outputs") from None
