"""Derives from a token's claims what its attempt may access: endpoints, SQL views, storage.

What is not in one of the sets is refused: everything is denied by default. Prefixes are folders, read once
(`objects.Folder`) and compared by segment; policies and mounts are written from them last.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, Protocol
from uuid import UUID

from tracelake.domain.access.object_names import Folder, ObjectName
from tracelake.domain.ids import CommitNumber, DatasetId, DatasetName, DatasetVersion
from tracelake.errors import InvalidRequest

ALWAYS: Final = frozenset(f"POST /v1/task/{name}" for name in ("heartbeat", "complete", "events", "logs"))
"""What every attempt may do: heartbeats, events, logs, completion."""
FILES: Final = "POST /v1/task/files"
QUERY: Final = "POST /v1/task/query"
BUFFER_PUBLISH: Final = "POST /v1/task/buffer-publish"
CREDENTIALS: Final = "POST /v1/task/credentials"

# Everything here is plain ASCII: no two spellings of one name, and nothing that ends a quoted string somewhere.
_TEXT: Final = re.compile(r"[\x21-\x7e]{1,2048}")
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,127}")
_INTEGER_LIMIT: Final = 2**63


@dataclass(frozen=True, slots=True)
class GrantedDataset:
    """One dataset that the attempt may read as of a commit, or write."""

    dataset_uuid: DatasetId
    dataset_version: DatasetVersion
    commit: CommitNumber | None
    """What a reader sees: this commit and those before it; 0 is the empty dataset. A writer has none."""
    name: DatasetName | None
    """What a reader calls it: the published name, else the DAG's. A writer's is None while it is not published."""
    storage_ref: str
    """Where the generation lies: a prefix that ends in `/`, or a table."""
    access: Literal["read", "write"]

    def __post_init__(self) -> None:
        check(_TEXT.fullmatch(self.storage_ref), "/datasets/storage_ref", "is not printable ASCII")
        check(self.name is None or _NAME.fullmatch(self.name), "/datasets/name", "is not a dataset's name")
        check((self.commit is None) == (self.access == "write"), "/datasets/commit", "is for readers, and only them")
        check(self.commit is None or 0 <= self.commit < _INTEGER_LIMIT, "/datasets/commit", "is no commit number")


@dataclass(frozen=True, slots=True)
class S3Prefixes:
    """Where in the object store the attempt may read and write: folders, written `s3://bucket/folder/`."""

    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, prefixes in (("read", self.read), ("write", self.write)):
            for prefix in prefixes:
                check(_is_folder(prefix), f"/s3/{name}", "is not written s3://bucket/folder/")


class Granting(Protocol):
    """The part of a token's claims that grants something."""

    @property
    def datasets(self) -> tuple[GrantedDataset, ...]: ...

    @property
    def s3(self) -> S3Prefixes: ...


@dataclass(frozen=True, slots=True)
class View:
    """A dataset that may be read, as SQL names it: one commit of one generation."""

    name: DatasetName
    dataset_uuid: DatasetId
    dataset_version: DatasetVersion
    commit: CommitNumber
    storage_ref: str


@dataclass(frozen=True, slots=True)
class StorageGrant:
    """Folders. What may be written may be read back, so `read` holds all of `write`."""

    read: frozenset[Folder]
    write: frozenset[Folder]

    def may_read(self, name: ObjectName) -> bool:
        return any(folder.holds(name) for folder in self.read)

    def may_write(self, name: ObjectName) -> bool:
        return any(folder.holds(name) for folder in self.write)

    def may_list(self, folder: Folder) -> bool:
        return _covered(folder, self.read)


@dataclass(frozen=True, slots=True)
class Grants:
    endpoints: frozenset[str]
    """`METHOD path` of the task listeners."""
    views: Mapping[str, View]
    """By name: what SQL may read, and nothing else exists for it."""
    storage: StorageGrant
    written: Mapping[UUID, GrantedDataset]
    """By dataset: what it may write and emit events for."""

    def read(self, dataset: UUID) -> View | None:
        return next((view for view in self.views.values() if view.dataset_uuid == dataset), None)


def grants_of(claims: Granting) -> Grants:
    read = [dataset for dataset in claims.datasets if dataset.access == "read"]
    written: dict[UUID, GrantedDataset] = {
        dataset.dataset_uuid: dataset for dataset in claims.datasets if dataset.access == "write"
    }
    views, storage = _views(read), _storage(claims.s3)
    return Grants(_endpoints(views, storage, written), MappingProxyType(views), storage, MappingProxyType(written))


def refuse_duplicates(datasets: Iterable[GrantedDataset]) -> None:
    """One name is one view: a token whose readers share a name could mean either."""
    known: dict[str, GrantedDataset] = {}
    for dataset in datasets:
        if dataset.access == "read" and dataset.name is not None:
            check(known.setdefault(dataset.name, dataset) == dataset, "/datasets/name", "names two datasets")


def check(good: object, where: str, fault: str) -> None:
    if not good:
        raise InvalidRequest(f"a capability cannot say this: {where} {fault}", where=where)


def _endpoints(
    views: Mapping[str, View], storage: StorageGrant, written: Mapping[UUID, GrantedDataset]
) -> frozenset[str]:
    """The endpoints that the grants need."""
    more = {
        FILES: views or written,
        QUERY: views,
        BUFFER_PUBLISH: written and storage.write,
        CREDENTIALS: storage.read,
    }
    return ALWAYS | {endpoint for endpoint, reason in more.items() if reason}


def _views(read: Iterable[GrantedDataset]) -> dict[str, View]:
    return {
        dataset.name: View(
            dataset.name, dataset.dataset_uuid, dataset.dataset_version, dataset.commit, dataset.storage_ref
        )
        for dataset in read
        if dataset.name is not None and dataset.commit is not None
    }


def _storage(s3: S3Prefixes) -> StorageGrant:
    write = _widest(Folder.parse(prefix) for prefix in s3.write)
    return StorageGrant(_widest([*map(Folder.parse, s3.read), *write]), write)


def _widest(folders: Iterable[Folder]) -> frozenset[Folder]:
    """Without folders inside of others: the same keys."""
    given = frozenset(folders)
    return frozenset(item for item in given if not any(other.holds(item) for other in given))


def _covered(folder: Folder, by: Iterable[Folder]) -> bool:
    return any(item == folder or item.holds(folder) for item in by)


def _is_folder(prefix: str) -> bool:
    try:
        Folder.parse(prefix)
    except InvalidRequest:
        return False
    return True
