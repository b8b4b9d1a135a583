"""The hashes of the ledger: what a commit's row says, linked to the commit before it.

`hash = SHA-256(previous hash + digest)`; the first commit of a chain has no previous hash. The digest is the SHA-256 of
a JSON array of the commit's fields, among them three hashes: of the partitions that it set with the checksums of their
files, of what its attempt had read, and of the code. The state database computes digest and hash in the statement that
inserts the commit (`commit_digest`, `link_commit`); here they are computed again, to verify.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

Digest = bytes
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
COMMITS_OF_AN_EPOCH: Final = 10**9
"""As in `next_commit` of the state database: after a restore from a backup, numbers continue after a multiple of it."""


@dataclass(frozen=True)
class PartitionContent:
    """A partition as a commit set it; the range is half-open."""

    key: str
    start: int | None
    stop: int | None
    location: str
    rows: int | None
    size: int | None
    files: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class CommitFields:
    """The fields of a commit that its digest covers, in their order."""

    org_id: UUID
    dataset_uuid: UUID
    number: int
    dataset_version: UUID
    task_id: UUID
    attempt: int
    scope: str
    rows: int | None
    size: int | None
    schema_hash: str | None
    committed_at: datetime
    files_hash: bytes
    inputs_hash: bytes
    code_hash: bytes


def first_of_epoch(number: int) -> int:
    """The first number that a commit can have after the restore that this one follows; 1 if there was none."""
    return (number - 1) // COMMITS_OF_AN_EPOCH * COMMITS_OF_AN_EPOCH + 1


def files_hash(partitions: Sequence[PartitionContent]) -> bytes:
    """In the order of their keys: the order in which they were reported does not count."""
    return _sha256_of(
        [
            [item.key, item.start, item.stop, item.location, item.rows, item.size, [dict(file) for file in item.files]]
            for item in sorted(partitions, key=lambda item: item.key)
        ]
    )


def content_hash(schema_hash: str, files: Sequence[Mapping[str, Any]]) -> bytes:
    """What a partition holds, whatever its files are called: equal hashes, equal rows.

    Equal rows may still have two hashes, where they were written in another order or by another release.
    """
    return _sha256_of([schema_hash, sorted(str(file["sha256"]) for file in files)])


def inputs_hash(inputs: Sequence[tuple[UUID, UUID, str, int | None]]) -> bytes:
    """Dataset, generation, partition ('' for all) and commit of each input."""
    rows = [[str(dataset), str(version), key, commit] for dataset, version, key, commit in inputs]
    return _sha256_of(sorted(rows, key=lambda row: (row[0], row[2])))


def code_hash(config_hash: str, bundle_sha256: str | None) -> bytes:
    return _sha256_of([config_hash, bundle_sha256])


def commit_hash(previous: bytes | None, commit: CommitFields) -> bytes:
    return hashlib.sha256((previous or b"") + _digest(commit)).digest()


def _digest(commit: CommitFields) -> bytes:
    return _sha256_of(
        [
            str(commit.org_id),
            str(commit.dataset_uuid),
            commit.number,
            str(commit.dataset_version),
            str(commit.task_id),
            commit.attempt,
            commit.scope,
            commit.rows,
            commit.size,
            commit.schema_hash,
            (commit.committed_at - EPOCH) // timedelta(microseconds=1),
            commit.files_hash.hex(),
            commit.inputs_hash.hex(),
            commit.code_hash.hex(),
        ]
    )


def _sha256_of(value: object) -> bytes:
    """Of the JSON text as Postgres writes it, with the keys of objects in order."""
    return hashlib.sha256(json.dumps(value, ensure_ascii=False, sort_keys=True).encode()).digest()
