"""Verifies the files of a completion: those that the attempt's marker lists must exist and match what it reports.

Runs before the completion's transaction: no lock is held while the object store is read. Nothing can change in between,
as only the attempt may write into its folder, and its files are never replaced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

import msgspec

from tracelake.capability.claims import Claims
from tracelake.domain.access.object_names import SCHEME, Folder
from tracelake.errors import Conflict, Forbidden, InvalidRequest, NotFound
from tracelake.ports import ObjectStore
from tracelake.wire.task.markers import ColumnEntry, FileEntry, Marker, attempt_folder, decode_marker, marker_in
from tracelake.wire.task.outputs import OutputBody


@dataclass(frozen=True)
class Schema:
    hash: str
    columns: Sequence[ColumnEntry]


async def verify_outputs(objects: ObjectStore, outputs: Sequence[OutputBody], claims: Claims) -> Mapping[UUID, Schema]:
    """The schema of each dataset that was written as files; raises if one of them must not count."""
    schemas: dict[UUID, Schema] = {}
    markers: dict[Folder, _Marked] = {}
    for index, output in enumerate(outputs):
        where = f"/outputs/{index}"
        folder = _own_folder(output, where, claims)
        if folder is None:
            continue
        if folder not in markers:
            markers[folder] = _Marked(await asyncio.to_thread(_read, objects, folder, where))
            marker = markers[folder].marker
            schemas[output.dataset_uuid] = Schema(marker.schema_hash, marker.columns)
        _compare(output, markers[folder], where, claims)
    return schemas


class _Marked:
    """A marker, and which of its files the outputs have named."""

    def __init__(self, marker: Marker) -> None:
        self.marker = marker
        self.listed = {file.name: file for file in marker.files}
        self.counted: set[str] = set()

    def count(self, file: FileEntry, where: str) -> None:
        """A file that stood for two partitions, or twice for one, would be read twice: its rows would be doubled."""
        if self.listed.get(file.name) != file:
            raise Conflict(f"the marker does not list {file.name} like that", where=where)
        if file.name in self.counted:
            raise Conflict(f"{file.name} is named more than once", where=where)
        self.counted.add(file.name)


def _own_folder(output: OutputBody, where: str, claims: Claims) -> Folder | None:
    """Of all that it may write, only the attempt's folder below the output holds files that can count.

    None: the dataset has no files, and the output names none. Where it has files they are always looked at: a partition
    without them could not be read by anybody.
    """
    granted = claims.grants.written.get(output.dataset_uuid)
    own = None
    if granted is not None and granted.storage_ref.startswith(SCHEME):
        own = attempt_folder(granted.storage_ref, claims.task_id, claims.attempt)
    if output.location is None and own is not None:
        raise InvalidRequest(
            "the dataset is made of files, and this output does not say where they lie",
            where=f"{where}/location",
            hint=f"write files and their marker into {own}, and name it; or send an event alone",
        )
    if output.location is not None and (own is None or output.location != str(own)):
        raise Forbidden(
            "the token does not let this attempt write there",
            where=f"{where}/location",
            hint="write into the attempt's own folder: attempts/{task_id}/{attempt}/ below the output's location",
        )
    return own


def _read(objects: ObjectStore, folder: Folder, where: str) -> Marker:
    """The marker, if every file that it lists exists in full."""
    try:
        marker = decode_marker(objects.get(marker_in(folder)))
    except NotFound:
        raise Conflict(
            "the attempt's folder has no marker: what was written there is not complete",
            where=f"{where}/location",
            hint=f"write {marker_in(folder)} last",
        ) from None
    sizes = {stored.name: stored.size for stored in objects.objects(folder)}
    for file in marker.files:
        there = sizes.get(folder.object(file.name))
        if there != file.bytes:
            found = "is not there" if there is None else f"has {there} bytes, not {file.bytes}"
            raise Conflict(f"{file.name} {found}", where=f"{where}/files")
    return marker


def _compare(output: OutputBody, marked: _Marked, where: str, claims: Claims) -> None:
    marker = marked.marker
    maker = (marker.task_id, marker.attempt, marker.dataset_uuid, marker.dataset_version)
    if maker != (claims.task_id, claims.attempt, output.dataset_uuid, output.dataset_version):
        raise Conflict("the marker was written by another attempt, or for another dataset", where=f"{where}/location")
    files = [_file(file, f"{where}/files/{n}") for n, file in enumerate(output.files)]
    for n, file in enumerate(files):
        marked.count(file, f"{where}/files/{n}")
    _check_hashes(output, marker, where)
    _check_addresses(output, where)
    for name, reported, counted in (
        ("row_count", output.row_count, sum(file.rows for file in files)),
        ("bytes", output.bytes, sum(file.bytes for file in files)),
    ):
        if reported is not None and reported != counted:
            raise Conflict(f"the files hold {counted}, not {reported}", where=f"{where}/{name}")


def _check_hashes(output: OutputBody, marker: Marker, where: str) -> None:
    """A column without a hash would count as one that does not exist."""
    names = {item.name.lower() for item in marker.columns if item.name.isascii()}
    if output.column_hashes is None or (set(output.column_hashes) == names and len(names) == len(marker.columns)):
        return
    raise InvalidRequest(
        "a partition has the hashes of all its columns, or none",
        where=f"{where}/column_hashes",
        hint="by the names of the marker's columns, in small letters",
    )


def _check_addresses(output: OutputBody, where: str) -> None:
    size = len(output.addresses or b"")
    if size & (size - 1):
        raise InvalidRequest(
            f"a summary of addresses has {size} bytes",
            where=f"{where}/addresses",
            hint="a power of two of bytes, or no summary",
        )


def _file(file: Mapping[str, object], where: str) -> FileEntry:
    try:
        return msgspec.convert(dict(file), FileEntry)
    except msgspec.ValidationError as wrong:
        raise InvalidRequest(f"a file has name, rows, bytes and sha256: {wrong}", where=where) from None
