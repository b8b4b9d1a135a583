"""Messages of the user API about the ledger of a dataset: its commits, and what verifying them found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from tracelake.domain.ledger import CommitFields, Digest, PartitionContent, code_hash, files_hash, inputs_hash
from tracelake.wire.message import Message
from tracelake.wire.user.fields import Limit, RowId


class LedgerQuery(Message, frozen=True):
    after: RowId = 0
    """The last commit of the page before."""
    limit: Limit = 100


class LedgerPartition(Message, frozen=True):
    """A partition as the commit set it."""

    key: str
    start: int | None
    end: int | None
    location: str
    rows: int | None
    bytes: int | None
    files: Sequence[Mapping[str, Any]]
    """Name, rows, bytes and sha256 of each; the name is within the location."""
    replaced: bool
    """By a later commit."""
    files_removed_at: datetime | None
    """When retention deleted its files."""

    def content(self) -> PartitionContent:
        stop = None if self.end is None else self.end + 1
        return PartitionContent(self.key, self.start, stop, self.location, self.rows, self.bytes, self.files)


class LedgerInput(Message, frozen=True):
    dataset_uuid: UUID
    dataset_version: UUID
    partition: str
    commit: int | None


class LedgerCode(Message, frozen=True):
    config_hash: str
    bundle_sha256: str | None


class LedgerEntry(Message, frozen=True):
    """A commit. Hashes are in hexadecimal, and None where it is older than the ledger."""

    org_id: UUID
    dataset_uuid: UUID
    commit: int
    dataset_version: UUID
    task_id: UUID
    attempt: int
    scope: str
    rows: int | None
    bytes: int | None
    schema_hash: str | None
    committed_at: datetime
    previous_hash: str | None
    files_hash: str | None
    inputs_hash: str | None
    code_hash: str | None
    hash: str | None
    partitions: Sequence[LedgerPartition]
    inputs: Sequence[LedgerInput] | None
    """None: what its attempt read is no longer stored."""
    code: LedgerCode | None
    """None: its task is no longer stored."""
    generation_removed_at: datetime | None
    """When the generation was removed, and its files and partitions with it."""

    def fields(self, number: int | None = None) -> CommitFields:
        """What its digest covers; with another number, what that commit's would."""
        return CommitFields(
            org_id=self.org_id,
            dataset_uuid=self.dataset_uuid,
            number=self.commit if number is None else number,
            dataset_version=self.dataset_version,
            task_id=self.task_id,
            attempt=self.attempt,
            scope=self.scope,
            rows=self.rows,
            size=self.bytes,
            schema_hash=self.schema_hash,
            committed_at=self.committed_at,
            files_hash=Digest.fromhex(self.files_hash or ""),
            inputs_hash=Digest.fromhex(self.inputs_hash or ""),
            code_hash=Digest.fromhex(self.code_hash or ""),
        )

    def parts(self) -> Mapping[str, tuple[str | None, Digest | None]]:
        """What the entry is made of: the stored hash of each, and the hash of what is stored now, if it still is."""
        read = [(item.dataset_uuid, item.dataset_version, item.partition, item.commit) for item in self.inputs or ()]
        code = None if self.code is None else code_hash(self.code.config_hash, self.code.bundle_sha256)
        gone = self.generation_removed_at is not None
        return {
            "files": (self.files_hash, None if gone else files_hash([part.content() for part in self.partitions])),
            "inputs": (self.inputs_hash, None if self.inputs is None else inputs_hash(read)),
            "code": (self.code_hash, code),
        }


class LedgerPage(Message, frozen=True):
    dataset_uuid: UUID
    last_commit: int
    """Of the dataset, not of the page."""
    last_hash: str | None
    before_hash: str | None
    """The hash of the commit before the first entry."""
    entries: Sequence[LedgerEntry]
    next: int | None
    """The `after` of the next page; None: this is the last."""


class VerifyQuery(LedgerQuery, frozen=True):
    rows: bool = False
    """Also read the rows of Parquet files, and count them."""


class Damage(Message, frozen=True):
    commit: int
    kind: str
    """`entry_changed`, `entry_missing`, `entries_swapped`, `chain_broken`, `partitions_changed`, `inputs_changed`,
    `code_changed`, `file_missing`, `file_changed`, `file_added` or `rows_differ`."""
    where: str
    """The object, or the part of the entry."""
    message: str


class VerifyPage(Message, frozen=True):
    """What was found in a page of commits."""

    last_commit: int
    next: int | None
    commits: int
    unchained: int
    """Commits that are older than the ledger: only their files were verified."""
    files: int
    bytes: int
    rows: int
    """Rows that were read; 0 without `rows`."""
    removed: int
    """Files that retention has deleted, which is no damage."""
    damages: Sequence[Damage]
