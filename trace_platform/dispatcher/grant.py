"""From a claimed task to its capability token: what it reads as of a commit, what it writes, and where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

from trace_platform.capability.claims import GrantedDataset, S3Prefixes, mint, new_claims
from trace_platform.contracts import InputRef
from trace_platform.dispatcher.control import Control
from trace_platform.domain.ids import Attempt, CommitNumber, DatasetId, DatasetName, DatasetVersion, OrgId, TaskId
from trace_platform.markers import attempt_folder
from trace_platform.store.jobs import Job


async def token_for(
    control: Control,
    job: Job,
    task_id: UUID,
    attempt: int,
    inputs: Sequence[InputRef],
    *,
    names: Mapping[UUID, str | None],
) -> str:
    """`names`: under which people know what it writes, now."""
    claims = new_claims(
        issuer=control.tokens.issuer,
        org_id=OrgId(job.org_id),
        task_id=TaskId(task_id),
        attempt=Attempt(attempt),
        datasets=(*_read(inputs), *_written(job, names)),
        s3=S3Prefixes(read=_prefixes(inputs), write=tuple(attempt_prefixes(job, task_id, attempt))),
        timeout_seconds=job.timeout_seconds,
        now=control.clock(),
        max_life_seconds=control.tokens.max_life_seconds,
    )
    token = await mint(control.signer, claims)
    control.minted(token, claims)
    return token


def attempt_prefixes(job: Job, task_id: UUID, attempt: int) -> list[str]:
    return [
        str(attempt_folder(output.storage_location, task_id, attempt))
        for output in job.outputs
        if output.storage_location.startswith("s3://")
    ]


def _read(inputs: Sequence[InputRef]) -> list[GrantedDataset]:
    return [
        GrantedDataset(
            DatasetId(one.dataset_uuid),
            DatasetVersion(one.dataset_version),
            CommitNumber(one.commit or 0),
            DatasetName(one.name) if one.name else None,
            one.storage_location or "",
            "read",
        )
        for one in inputs
    ]


def _written(job: Job, names: Mapping[UUID, str | None]) -> list[GrantedDataset]:
    return [
        GrantedDataset(
            DatasetId(one.dataset_uuid),
            DatasetVersion(one.dataset_version),
            None,
            DatasetName(name) if (name := names.get(one.dataset_uuid)) else None,
            one.storage_location,
            "write",
        )
        for one in job.outputs
    ]


def _prefixes(inputs: Sequence[InputRef]) -> tuple[str, ...]:
    return tuple(one.storage_location for one in inputs if (one.storage_location or "").startswith("s3://"))  # type: ignore[misc]
