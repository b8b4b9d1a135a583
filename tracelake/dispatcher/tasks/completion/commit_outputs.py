"""Commits the outputs of one completion: for each dataset a number, its new partitions, and the end of those replaced.

Runs inside the completion's transaction. A lock puts the commits of a dataset in order.

The outputs of an attempt may be outdated: another one, claimed later and so with newer inputs, has committed the same
partition meanwhile. Then there is nothing to commit, and the task completes all the same.

A partition that is written again with the same content is replaced like any other, since its files may have been
damaged; but it remembers the commit since which it has had this content, and that one counts for its readers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID, uuid5

import msgspec

from tracelake.capability.claims import Claims
from tracelake.dispatcher.events.new_events import require_writable
from tracelake.dispatcher.tasks.completion.check_replacement import (
    Partition,
    Replacement,
    check_replacement,
    columns_of,
    part_of,
)
from tracelake.dispatcher.tasks.completion.verify_outputs import Schema
from tracelake.domain.access.grants import GrantedDataset
from tracelake.domain.access.object_names import SCHEME, Folder
from tracelake.domain.ledger import PartitionContent, content_hash, files_hash
from tracelake.domain.ranges import inclusive
from tracelake.errors import Conflict, Forbidden, Incompatible, InvalidRequest
from tracelake.store.jobs import StoredJob
from tracelake.store.queries import Connection, Row, find_row, queries
from tracelake.wire.task.markers import ColumnEntry, in_words
from tracelake.wire.task.outputs import CompleteRequest, OutputBody, PublishedBody, StorageRef

GLOB: Final = re.compile(r"[A-Za-z0-9_.*-]{1,255}")
"""As the schema has it."""


@dataclass(frozen=True)
class Committed:
    """What a completion changed in one dataset."""

    number: int
    """Of the commit."""
    unchanged: frozenset[str] = frozenset()
    """The partitions that it wrote with the content that they had already."""


class GenerationSchema(Row, frozen=True):
    schema_hash: str | None
    columns: str | None


async def lock_datasets(connection: Connection, outputs: Iterable[OutputBody]) -> None:
    """Blocks other commits to these datasets until the transaction ends; in a fixed order, so without deadlocks."""
    await lock_commits(connection, {output.dataset_uuid for output in outputs})


async def lock_commits(connection: Connection, datasets: Iterable[UUID]) -> None:
    if names := sorted(map(str, datasets)):
        await connection.execute(queries("complete")["lock_commits"], names)


async def commit_outputs(
    connection: Connection,
    job: StoredJob,
    request: CompleteRequest,
    claims: Claims,
    *,
    schemas: Mapping[UUID, Schema],
    started_at: datetime,
) -> dict[UUID, Committed]:
    """By dataset that the completion wrote; the caller holds `lock_datasets`."""
    for index, output in enumerate(request.outputs):
        require_writable(output.dataset_uuid, output.dataset_version, f"/outputs/{index}", claims)
        _refuse_other_index(output, f"/outputs/{index}", job)
    for index, published in enumerate(request.datasets_published):
        require_writable(published.dataset_uuid, published.dataset_version, f"/datasets_published/{index}", claims)
    commits = {}
    for dataset in sorted({output.dataset_uuid for output in request.outputs}):
        outputs = [output for output in request.outputs if output.dataset_uuid == dataset]
        replacement = await check_replacement(connection, outputs, started_at)
        if replacement.outputs:
            commits[dataset] = await _commit_dataset(connection, replacement, claims, schemas.get(dataset))
    for index, published in enumerate(request.datasets_published):
        await _publish(connection, published, f"/datasets_published/{index}", claims)
    return commits


async def _commit_dataset(
    connection: Connection, replacement: Replacement, claims: Claims, schema: Schema | None
) -> Committed:
    outputs, first = replacement.outputs, replacement.outputs[0]
    schema_hash = await _agreed_schema(connection, outputs, claims, schema)
    written = [_written(part, output, schema_hash, replacement) for part, output in _partitions(outputs)]
    unchanged = frozenset(item.part.key for item in written if item.since is not None and item.part.key)
    number: int = await connection.fetchval(
        queries("complete")["insert_commit"],
        first.dataset_uuid,
        claims.org_id,
        first.dataset_version,
        claims.task_id,
        claims.attempt,
        _total(item.row_count for item in outputs),
        _total(item.bytes for item in outputs),
        schema_hash,
        files_hash([_content(item.part, item.output) for item in written]),
        len(unchanged),
    )
    if replacement.ends_any:
        await _end_partitions(connection, first, written, number)
    await _set_partitions(connection, first, written, number, claims)
    return Committed(number, unchanged)


@dataclass(frozen=True)
class _Written:
    part: Partition
    output: OutputBody
    content: bytes | None
    """None: it has no files."""
    since: int | None
    """The commit since which the partition has had this content; None: it is new."""


def _written(part: Partition, output: OutputBody, schema_hash: str | None, replacement: Replacement) -> _Written:
    if schema_hash is None or output.location is None:
        return _Written(part, output, None, None)
    content, before = content_hash(schema_hash, output.files), replacement.contents.get(part.key or "")
    return _Written(part, output, content, before.since if before and before.hash == content else None)


def _partitions(outputs: Sequence[OutputBody]) -> Sequence[tuple[Partition, OutputBody]]:
    """Rows of a table up to a cursor are no partition: there is nothing to point at."""
    return [(part, output) for output in outputs if (part := part_of(output)).key is not None]


def _content(part: Partition, output: OutputBody) -> PartitionContent:
    start, stop = (part.span.start, part.span.stop) if part.span else (None, None)
    return PartitionContent(
        part.key or "", start, stop, output.location or "", output.row_count, output.bytes, output.files
    )


async def _end_partitions(connection: Connection, first: OutputBody, written: Sequence[_Written], number: int) -> None:
    named = columns_of([item.part for item in written])
    await connection.execute(queries("complete")["end_partitions"], first.dataset_version, *named, number)


async def _set_partitions(
    connection: Connection,
    first: OutputBody,
    written: Sequence[_Written],
    number: int,
    claims: Claims,
) -> None:
    """All in one statement each: an invalidation may make thousands of partitions again."""
    version, sql, named = first.dataset_version, queries("complete"), columns_of([item.part for item in written])
    outputs = [item.output for item in written]
    await connection.execute(
        sql["insert_partitions"],
        version,
        *named,
        number,
        claims.org_id,
        first.dataset_uuid,
        [output.location or "" for output in outputs],
        [msgspec.json.encode(output.files).decode() for output in outputs],
        [output.row_count for output in outputs],
        [output.bytes for output in outputs],
        [item.content for item in written],
        [item.since for item in written],
        [msgspec.json.encode(output.column_hashes).decode() if output.column_hashes else None for output in outputs],
        [output.addresses for output in outputs],
    )


async def _agreed_schema(
    connection: Connection, outputs: Sequence[OutputBody], claims: Claims, schema: Schema | None
) -> str | None:
    """The first commit of a generation sets its schema; another schema later is refused with both."""
    given = {item.schema_hash for item in outputs if item.schema_hash} | ({schema.hash} if schema else set())
    if not given:
        return None
    sql, first = queries("complete"), outputs[0]
    generation = claims.org_id, first.dataset_uuid, first.dataset_version
    known = await find_row(connection, sql["schema_of"], GenerationSchema, *generation)
    if known is not None and known.schema_hash is None:
        columns = msgspec.to_builtins(schema.columns) if schema else None
        await connection.execute(sql["set_schema"], first.dataset_version, min(given), columns)
        known = await find_row(connection, sql["schema_of"], GenerationSchema, *generation)
    if known is None or given != {known.schema_hash}:
        raise Incompatible(
            f"the schema changed within a generation: it has ({_said(known)}), this output has"
            f" ({in_words(schema.columns) if schema else ', '.join(sorted(given))})",
            where="/outputs",
            hint="a changed schema is a changed job: deploy it, and a new generation is built",
        )
    return min(given)


def _said(schema: GenerationSchema | None) -> str:
    """The generation's schema, in words where it is known so well."""
    if schema is None or schema.columns is None:
        return str(schema and schema.schema_hash)
    return in_words(msgspec.json.decode(schema.columns, type=list[ColumnEntry]))


async def _publish(connection: Connection, published: PublishedBody, where: str, claims: Claims) -> None:
    """Same key and contents again is nothing; same key and other contents is a conflict."""
    if (published.range_start is None) != (published.range_end is None):
        raise InvalidRequest("a range needs both its start and its end", where=f"{where}/range_start")
    if published.range_start is None or published.range_end is None:
        return  # the generation itself: it was registered when the DAG was deployed
    span = inclusive(published.range_start, published.range_end)
    ref = published.storage_ref
    location = str(_published_folder(ref, claims.grants.written[published.dataset_uuid], where))
    sql = queries("complete")
    new = await connection.fetchval(
        sql["publish_range"],
        _range_version(published),
        claims.org_id,
        published.dataset_uuid,
        published.dataset_version,
        location,
        ref.glob,
        published.config_hash,
        span.start,
        span.stop,
    )
    if new is None:
        key = (published.config_hash, published.range_start, published.range_end)
        generation = published.dataset_uuid, published.dataset_version
        stored = await connection.fetchrow(sql["published_range"], *generation, *key)
        if stored is None or tuple(stored) != (location, ref.glob):
            raise Conflict("this range has been published with other contents", where=f"{where}/storage_ref")


def _published_folder(ref: StorageRef, granted: GrantedDataset, where: str) -> Folder:
    """A range is published where its generation lies, and names its files without leading anywhere else."""
    folder = Folder.parse(f"s3://{ref.bucket}/{ref.prefix.removesuffix('/')}/")
    home = Folder.parse(granted.storage_ref) if granted.storage_ref.startswith(SCHEME) else None
    if home is None or not (folder == home or home.holds(folder)):
        raise Forbidden(
            "the token does not let this task publish files there",
            where=f"{where}/storage_ref/prefix",
            hint=f"publish files below {granted.storage_ref}",
        )
    if not GLOB.fullmatch(ref.glob):
        raise InvalidRequest(
            "a glob is one file name of letters, digits and _.-, in which * matches anything",
            where=f"{where}/storage_ref/glob",
        )
    return folder


def _range_version(published: PublishedBody) -> UUID:
    return uuid5(
        published.dataset_version, f"{published.config_hash or ''}:{published.range_start}-{published.range_end}"
    )


def _refuse_other_index(output: OutputBody, where: str, job: StoredJob) -> None:
    indexes = {item.dataset_uuid: item.output_index for item in job.outputs}
    if output.output_index is not None and indexes.get(output.dataset_uuid) != output.output_index:
        raise InvalidRequest(
            f"output {output.output_index} of this job is another dataset", where=f"{where}/output_index"
        )


def _total(numbers: Iterable[int | None]) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None
