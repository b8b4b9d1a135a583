"""From a claimed task to its capability token: what it reads as of a commit, what it writes, and where."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final
from uuid import UUID

from tracelake.capability.claims import Claims, mint, new_claims, renewal_due
from tracelake.domain.access.grants import GrantedDataset, S3Prefixes
from tracelake.domain.access.object_names import SCHEME, Folder
from tracelake.domain.access.storage_locations import buffer_folder, scratch_folder, shared_buffer_folder
from tracelake.domain.dag.model import Storage
from tracelake.domain.ids import Attempt, CommitNumber, DatasetId, DatasetName, DatasetVersion, OrgId, TaskId
from tracelake.ports import Signer
from tracelake.settings import TokenSettings
from tracelake.store.clock import DatabaseClock
from tracelake.store.jobs import StoredJob
from tracelake.wire.task.lifecycle import InputRef
from tracelake.wire.task.markers import attempt_folder

NAME_ROOM: Final = 120
"""Of a name's 128 characters, so that a number fits behind."""


@dataclass(frozen=True)
class TokenMint:
    signer: Signer
    settings: TokenSettings
    clock: DatabaseClock
    """Times tokens; leases and retries are timed in SQL."""
    scratch_bucket: str
    epoch: int
    minted: Callable[[str, Claims], None]
    """Called with every token of a claim, so that the verifier need not check its signature."""

    async def token_for(
        self,
        job: StoredJob,
        task_id: UUID,
        attempt: int,
        inputs: Sequence[InputRef],
        *,
        names: Mapping[UUID, str | None],
    ) -> str:
        """`names`: under which people know what it writes, now."""
        claims = self.claims_for(job, task_id, attempt, inputs, names=names)
        token = await mint(self.signer, claims)
        self.minted(token, claims)
        return token

    def claims_for(
        self,
        job: StoredJob,
        task_id: UUID,
        attempt: int,
        inputs: Sequence[InputRef],
        *,
        names: Mapping[UUID, str | None],
    ) -> Claims:
        """What its token says."""
        folders = _folders(self.scratch_bucket, job, task_id, attempt)
        return new_claims(
            issuer=self.settings.issuer,
            org_id=OrgId(job.org_id),
            task_id=TaskId(task_id),
            attempt=Attempt(attempt),
            datasets=(*_read(inputs), *_written(job, names)),
            s3=S3Prefixes(read=_prefixes(inputs), write=tuple(map(str, folders))),
            timeout_seconds=job.timeout_seconds,
            now=self.clock(),
            max_life_seconds=self.settings.max_life_seconds,
            epoch=self.epoch,
        )

    async def fresh_token(self, claims: Claims) -> str | None:
        """Past half its life (S14), with the same grants; if it is lost, the next heartbeat returns another."""
        now = self.clock()
        if not renewal_due(claims, now):
            return None
        fresh = new_claims(
            issuer=claims.iss,
            org_id=claims.org_id,
            task_id=claims.task_id,
            attempt=claims.attempt,
            datasets=claims.datasets,
            s3=claims.s3,
            # The same life as the old one had.
            timeout_seconds=None,
            now=now,
            max_life_seconds=claims.exp - claims.iat,
            epoch=claims.epoch,
        )
        return await mint(self.signer, fresh)


def _folders(scratch: str, job: StoredJob, task_id: UUID, attempt: int) -> Iterator[Folder]:
    """Where it may write: its files, its batches for the sink, and what it needs for itself."""
    for output in job.outputs:
        if output.storage_location.startswith(SCHEME):
            yield attempt_folder(output.storage_location, task_id, attempt)
        elif output.kind == Storage.BUFFERED:
            yield buffer_folder(scratch, output.dataset_uuid, task_id, attempt)
    if any(output.kind == Storage.BUFFERED for output in job.outputs):
        yield shared_buffer_folder(scratch, task_id, attempt)
    yield scratch_folder(scratch, job.org_id, task_id, attempt)


def _read(inputs: Sequence[InputRef]) -> list[GrantedDataset]:
    """Each input once, under a name of its own."""
    found = [
        GrantedDataset(
            DatasetId(item.dataset_uuid),
            DatasetVersion(item.dataset_version),
            CommitNumber(item.commit or 0),
            DatasetName(name),
            item.storage_location or "",
            "read",
        )
        for item, name in zip(inputs, _names(inputs), strict=True)
    ]
    return list(dict.fromkeys(found))


def _names(inputs: Sequence[InputRef]) -> list[str]:
    """The published name; else the DAG's own, with a number behind it where a published one is the same."""
    published = {item.name for item in inputs if item.name}
    names = list[str]()
    for item in inputs:
        taken = published | set(names)
        names.append(item.name or next(name for name in _tries(item.alias or "input") if name not in taken))
    return names


def _tries(name: str) -> Iterator[str]:
    yield name
    yield from (f"{name[:NAME_ROOM]}_{n}" for n in count(2))


def _written(job: StoredJob, names: Mapping[UUID, str | None]) -> list[GrantedDataset]:
    return [
        GrantedDataset(
            DatasetId(item.dataset_uuid),
            DatasetVersion(item.dataset_version),
            None,
            DatasetName(name) if (name := names.get(item.dataset_uuid)) else None,
            item.storage_location,
            "write",
        )
        for item in job.outputs
    ]


def _prefixes(inputs: Sequence[InputRef]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(place for item in inputs if (place := _place(item)).startswith(SCHEME)))


def _place(item: InputRef) -> str:
    """The folder of the generation; of one that shares files with others, that of the dataset, which holds them all."""
    place = item.storage_location or ""
    if not item.shares_files:
        return place
    generation = Folder.parse(place)
    return str(Folder(generation.bucket, generation.segments[:-1]))
