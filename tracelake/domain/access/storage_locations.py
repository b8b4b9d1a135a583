"""Locations in the object store: a generation's files, an attempt's scratch, the batches that it publishes.

An attempt's folders carry its number, so that a losing attempt never writes where a winning one does. Folders name the
organisation, but those of batches, which the specification gives (`docs/adr/0040-the-organisation-in-folders.md`).
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from tracelake.domain.access.object_names import Folder

TABLE: Final = "postgres_table:"
"""What the location of a generation in Postgres begins with."""
BUFFERED_SCHEMA: Final = "buffered"
DATASETS: Final = "datasets"
HALF_OF_ID: Final = len("00000000-0000-0000")


def org_segment(org: UUID) -> str:
    """How folders of datasets name an organisation: by the first half of its id, as policies of a store are short."""
    return str(org)[:HALF_OF_ID]


def dataset_folder(bucket: str, org: UUID, dataset: UUID) -> Folder:
    """Of all generations of a dataset, which may use each other's files."""
    return Folder(bucket, (DATASETS, org_segment(org), str(dataset)))


def generation_folder(bucket: str, org: UUID, dataset: UUID, generation: UUID) -> Folder:
    return dataset_folder(bucket, org, dataset).folder(str(generation))


def buffered_table(generation: UUID) -> str:
    """The table that holds a buffered dataset, within data Postgres."""
    return f"{BUFFERED_SCHEMA}.b_{generation.hex}"


def is_buffered(storage_location: str | None) -> bool:
    """Whether a generation is in a table that the sink fills."""
    return (storage_location or "").startswith(f"{TABLE}{BUFFERED_SCHEMA}.")


def bundle_folder(bucket: str, org: UUID) -> Folder:
    """The zips of an organisation's code, each named by its content."""
    return Folder(bucket, ("bundles", str(org)))


SCRATCH: Final = "scratch"
"""The first segment of every attempt's own."""


def scratch_folder(bucket: str, org: UUID, task: UUID, attempt: int) -> Folder:
    """What an attempt writes for itself: gone some time after it ended."""
    return Folder(bucket, (SCRATCH, str(org), str(task), str(attempt)))


def buffer_folder(bucket: str, dataset: UUID, task: UUID, attempt: int) -> Folder:
    """Batches that the sink is to take."""
    return Folder(bucket, ("buffers", str(dataset), str(task), str(attempt)))


def shared_buffer_folder(bucket: str, task: UUID, attempt: int) -> Folder:
    """Batches of any dataset that the attempt writes: the publish names the dataset, and the path does not."""
    return Folder(bucket, ("buffers", str(task), str(attempt)))


def repaired_name(publish: UUID, digest: str) -> str:
    """What a repaired batch is called, in the folder of the attempt that published the first one."""
    return f"repaired-{publish}-{digest}"
