"""Step 10 of one event, the rows: batches are staged on Spark and merged into their tables, each all or nothing.

Trusts only the Dispatcher's record. Every batch gets an outcome: applied, dead with its reason, away, or failed by no
fault of its own and to be retried; one batch never decides about another. Next: `drain.py` settles.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import psycopg
import structlog

from tracelake.data.buffered.merge_batches import Applied, Waiting, applied, merge_batches
from tracelake.data.buffered.stage_batches import Batch, BatchLimits, StagedBatch, stage_batches, staging_columns
from tracelake.data.buffered.tables import BufferedTable, ensure
from tracelake.data.postgres.secret_dsn import SecretDsn
from tracelake.data.postgres.staging import drop_staging, make_staging, sweep_staging
from tracelake.domain.access.object_names import Folder, ObjectName
from tracelake.domain.buffered import from_json
from tracelake.errors import BadInput, Conflict, DatabaseUnavailable, InvalidRequest
from tracelake.ports import ObjectStore
from tracelake.runtime.crash_points import crash_point
from tracelake.sink.batches_in_progress import BatchesInProgress
from tracelake.wire.task.buffers import BufferRecord, BufferTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = structlog.get_logger()

STAGING_AGE: Final = timedelta(hours=1)
"""Older than any write may take: left by a kill."""
IN_PROGRESS_AGE: Final = timedelta(days=30)
"""Older than any redelivery of a batch: it has ended in another way."""
CONNECT_SECONDS: Final = 10


@dataclass(frozen=True)
class Dead:
    publish_id: UUID
    reason: str
    line: int | None = None


@dataclass(frozen=True)
class Away:
    """To be retried: a service that it needs does not answer."""

    publish_id: UUID
    reason: str


@dataclass(frozen=True)
class Failed:
    """To be retried: an unexpected failure, which may not be the batch's fault."""

    publish_id: UUID
    reason: str


BatchOutcome = Applied | Dead | Away | Failed


@dataclass(frozen=True)
class Writer:
    """Used from any number of threads; each write has a connection of its own, and they are kept."""

    spark: Callable[[], SparkSession]
    """A live session."""
    objects: ObjectStore
    dsn: str = field(repr=False)
    limits: BatchLimits
    max_crashes: int = 5
    """So many sinks may die over a batch; then it is dead."""
    in_progress: BatchesInProgress = field(default_factory=BatchesInProgress, repr=False)
    _idle: list[psycopg.Connection[Any]] = field(default_factory=list, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def write(self, records: Sequence[BufferRecord], tables: Sequence[BufferTable]) -> list[BatchOutcome]:
        """An outcome for each record; DatabaseUnavailable when data Postgres is away, and nothing was decided.

        One that is settled as dead has an outcome only if its rows are in the table after all.
        """
        known = {item.dataset_uuid: _table(item) for item in tables}
        with self._connection() as connection:
            done: list[BatchOutcome] = list(applied(connection, [item.publish_id for item in records]).values())
            settled = {item.publish_id for item in done}
            left = [item for item in records if item.publish_id not in settled and item.status == "Accepted"]
            refused = {item.publish_id: dead for item in left if (dead := _refused(item, known.get(item.dataset_uuid)))}
            good = [item for item in left if item.publish_id not in refused]
            self.in_progress.release(connection, [*settled])
            return [*done, *refused.values(), *(self._read(connection, good, known) if good else [])]

    def _read(
        self, connection: psycopg.Connection[Any], records: Sequence[BufferRecord], known: Mapping[UUID, BufferedTable]
    ) -> Iterator[BatchOutcome]:
        """Together, but for those over which a sink has died: each of them alone, the one that did it oftenest last."""
        with suppress(Exception):  # a Spark that does not start is no fault of a batch; `_staged` reports it
            self.spark()
        crashes = self.in_progress.left_over(connection, [item.publish_id for item in records])
        if calm := [item for item in records if item.publish_id not in crashes]:
            with self.in_progress.held(connection, [item.publish_id for item in calm], alone=False):
                yield from self._groups(connection, calm, known)
        suspects = [item for item in records if item.publish_id in crashes]
        for item in sorted(suspects, key=lambda suspect: crashes[suspect.publish_id]):
            yield from self._alone(connection, item, known, crashes[item.publish_id])

    def _alone(
        self,
        connection: psycopg.Connection[Any],
        record: BufferRecord,
        known: Mapping[UUID, BufferedTable],
        crashes: int,
    ) -> list[BatchOutcome]:
        if crashes >= self.max_crashes:
            self.in_progress.release(connection, [record.publish_id])  # a replay begins to count anew
            return [Dead(record.publish_id, f"{crashes} sinks in turn died while they read this batch")]
        with self.in_progress.held(connection, [record.publish_id], alone=True):
            return list(self._groups(connection, [record], known))

    def prepare(self, tables: Sequence[BufferTable]) -> None:
        """Make or widen tables before their first batch; and be ready for that."""
        self.spark()
        with self._connection() as connection:
            for item in tables:
                ensure(connection, _table(item))
                crash_point("sink.table_prepared")

    def sweep(self) -> None:
        """Removes what killed sinks have left."""
        with self._connection() as connection:
            sweep_staging(connection, STAGING_AGE)
            self.in_progress.sweep(connection, IN_PROGRESS_AGE)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _groups(
        self, connection: psycopg.Connection[Any], records: Sequence[BufferRecord], known: Mapping[UUID, BufferedTable]
    ) -> Iterator[BatchOutcome]:
        """All batches in one Spark job, then a transaction for each table."""
        by_table: dict[UUID, list[BufferRecord]] = {}
        for item in sorted(records, key=lambda element: element.publish_id):  # as they were published
            by_table.setdefault(item.dataset_uuid, []).append(item)
        tables = dict[UUID, BufferedTable]()
        for element, id_ in by_table.items():
            try:
                tables[element] = replace(known[element], declaration=ensure(connection, known[element]))
            except Conflict as wrong:
                yield from (Dead(item.publish_id, wrong.message) for item in id_)
        numbered = [id_ for element in tables for id_ in by_table[element]]
        with _staging(connection, tables) as staging:
            crash_point("sink.before_stage")
            batches = [
                _batch(item, tables[item.dataset_uuid], staging[item.dataset_uuid], number)
                for number, item in enumerate(numbered)
            ]
            found = self._staged(batches)
            crash_point("sink.staged")
            staged = {numbered[batch.number].publish_id: batch for batch in found}
            for element, table in tables.items():
                pairs = [(id_, staged[id_.publish_id]) for id_ in by_table[element]]
                yield from _merged(connection, table, staging[element], pairs)

    def _staged(self, batches: Sequence[Batch]) -> list[StagedBatch]:
        """Together; if that fails unexpectedly, each by itself, to find the one at fault."""
        dsn = SecretDsn(self.dsn)
        try:
            return stage_batches(self.spark(), self.objects, dsn, batches, self.limits) if batches else []
        except Exception as wrong:
            if len(batches) == 1:
                log.exception("a batch cannot be read")
                return [_faulty(batches[0], wrong)]
            log.warning("batches cannot be read together", because=str(wrong)[:500], batches=len(batches))
        return [found for batch in batches for found in self._staged([batch])]

    @contextmanager
    def _connection(self) -> Iterator[psycopg.Connection[Any]]:
        """One that is kept is used again, if it has not been cut."""
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        try:
            if connection is None or connection.closed:
                connection = psycopg.connect(self.dsn, autocommit=True, connect_timeout=CONNECT_SECONDS)
            yield connection
        except (psycopg.OperationalError, psycopg.InterfaceError) as away:
            if connection is not None:
                with suppress(psycopg.Error):
                    connection.close()
            reason = SecretDsn(self.dsn).redact(str(away).splitlines()[0] if str(away) else type(away).__name__)
            raise DatabaseUnavailable(f"data Postgres does not answer: {reason}") from None
        else:
            with self._lock:
                self._idle.append(connection)


def _faulty(batch: Batch, wrong: Exception) -> StagedBatch:
    """Spark does not report why a worker died, so the batch may not be at fault."""
    fault = f"reading it ends in {type(wrong).__name__}"
    return StagedBatch(batch.number, 0, 0, 0, line=None, reason=None, away=None, fault=fault)


def _table(buffer_table: BufferTable) -> BufferedTable:
    return BufferedTable(
        buffer_table.dataset_uuid,
        buffer_table.dataset_version,
        buffer_table.org_id,
        from_json(buffer_table.declaration),
    )


def _refused(record: BufferRecord, table: BufferedTable | None) -> Dead | None:
    """Whether the record itself is enough to refuse the batch, before anything is read."""
    if table is None:
        return Dead(record.publish_id, "the dataset is not declared as buffered, so its columns are not known")
    if (table.org_id, table.dataset_version) != (record.org_id, record.dataset_version):
        return Dead(record.publish_id, "the publish is of another organisation or generation than the table")
    if not _lies_in(record.batch_uri, record.folder):
        return Dead(record.publish_id, "the batch is not in the folder of the attempt that published it")
    return None


def _lies_in(uri: str, folder: str) -> bool:
    try:
        return Folder.parse(folder).holds(ObjectName.parse(uri))
    except InvalidRequest:
        return False


def _batch(record: BufferRecord, table: BufferedTable, staging: str, number: int) -> Batch:
    name = ObjectName.parse(record.batch_uri)
    return Batch(name, record.content_type, table.declaration, staging, number, record.record_count)


@contextmanager
def _staging(connection: psycopg.Connection[Any], tables: Mapping[UUID, BufferedTable]) -> Iterator[dict[UUID, str]]:
    """A staging table for each table, dropped at the end."""
    names: dict[UUID, str] = {}
    try:
        for element, table in tables.items():
            names[element] = make_staging(connection, staging_columns(table.declaration))
        yield names
    finally:
        with suppress(psycopg.Error):  # what is left is swept
            for name in names.values():
                drop_staging(connection, name)


def _merged(
    connection: psycopg.Connection[Any],
    table: BufferedTable,
    staging: str,
    staged: Sequence[tuple[BufferRecord, StagedBatch]],
) -> Iterator[BatchOutcome]:
    waiting = []
    for record, item in staged:
        if item.reason is not None:
            yield Dead(record.publish_id, item.reason, item.line)
        elif item.away is not None:
            yield Away(record.publish_id, item.away)
        elif item.fault is not None:
            yield Failed(record.publish_id, item.fault)
        else:
            place = (item.number, item.tried, item.rows, item.bytes)
            waiting.append(Waiting(record.publish_id, record.task_id, record.attempt, *place))
    if waiting:
        yield from _together(connection, table, staging, waiting)


def _together(
    connection: psycopg.Connection[Any], table: BufferedTable, staging: str, waiting: Sequence[Waiting]
) -> list[BatchOutcome]:
    """In one transaction; if Postgres refuses a value, each by itself, so that only the one at fault is dead."""
    try:
        return list(merge_batches(connection, table, staging, waiting))
    except (BadInput, Conflict) as wrong:
        if len(waiting) == 1:
            return [Dead(waiting[0].publish_id, wrong.message)]
    return [outcome for item in waiting for outcome in _together(connection, table, staging, [item])]
