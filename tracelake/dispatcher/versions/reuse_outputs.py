"""Completes new tasks with the files of others that wrote the same: memoisation.

A memo key covers what decides the bytes of a task's outputs (`memo_key` in Postgres). Where a completed task, the
original, has the same key and its files are there, nothing has to run: the Dispatcher claims the task itself and
completes it by the verbs of a worker's task, with partitions that name the files of the original. What removes files
counts these partitions.

All of it happens in the transaction that created the tasks, so there is never a task that waits to be looked up.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import msgspec
import structlog

from tracelake.dispatcher.dags.catalog import codes
from tracelake.dispatcher.tasks.claim import INPUTS, NAMES, ClaimedTask
from tracelake.dispatcher.tasks.completion.complete import Announcer
from tracelake.dispatcher.tasks.completion.complete_batch import BatchOptions, BatchResult, complete_in_transaction
from tracelake.dispatcher.tasks.completion.completion import Completion, completion_of
from tracelake.dispatcher.tasks.completion.verify_outputs import Schema
from tracelake.dispatcher.tasks.grant import TokenMint
from tracelake.domain.task import TaskState
from tracelake.store.jobs import StoredJob, StoredOutput
from tracelake.store.queries import Connection, Row, fetch_column, fetch_rows, queries
from tracelake.wire.task.markers import ColumnEntry
from tracelake.wire.task.outputs import CompleteRequest, EventBody, OutputBody, Summary

log = structlog.get_logger()

REFUSED = (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError)


class OriginalPartition(Row, frozen=True):
    """A partition that an original set, as the task shall have it."""

    task_id: UUID
    memo_key: bytes
    original: UUID
    dataset_uuid: UUID
    partition_key: str
    start: int | None
    end: int | None
    location: str
    files: str
    row_count: int | None
    bytes: int | None
    schema_hash: str | None
    columns: str | None
    column_hashes: str | None
    addresses: Summary | None


Originals = Mapping[UUID, Sequence[OriginalPartition]]
"""By task: a partition for each output."""


@dataclass(frozen=True)
class Reused:
    """Tasks that were completed with the files of others."""

    result: BatchResult


class _NotReused(Exception):
    """These tasks are to run after all; what the transaction did for the others with them is undone."""

    def __init__(self, tasks: Collection[UUID]) -> None:
        super().__init__(f"{len(tasks)} tasks")
        self.tasks = tasks


@dataclass(frozen=True)
class ReuseOutputs:
    tokens: TokenMint
    options: BatchOptions
    announcer: Announcer

    async def close(self, connection: Connection, tasks: Sequence[UUID]) -> Reused | None:
        """Completes those that have an original; the others stay as they are.

        The caller holds the transaction that created them, and the locks of their datasets.
        """
        await connection.execute(queries("reuse")["plan_once"])
        originals = await _find_originals(connection, tasks)
        while originals:
            try:
                async with connection.transaction():
                    return Reused(await self._complete(connection, originals))
            except _NotReused as refused:
                originals = {task: parts for task, parts in originals.items() if task not in refused.tasks}
            except REFUSED as refusal:
                log.warning("Postgres refused outputs that were to be used again", because=type(refusal).__name__)
                return None
        return None

    def announce(self, reused: Reused) -> None:
        """After the commit."""
        metrics, ended = self.announcer.after.metrics, reused.result.ended
        metrics.moved(TaskState.QUEUED, TaskState.RUNNING, len(ended))
        self.announcer.announce(reused.result)
        for _, task, _ in ended:
            metrics.memoized.labels(str(task.org_id), task.dag_name, task.job_name).inc()

    async def _complete(self, connection: Connection, originals: Originals) -> BatchResult:
        claimed = await self._claim(connection, originals)
        batch = [await self._completion(connection, row, originals[row.task_id]) for row in claimed]
        own = replace(self.options, jobs=self.options.jobs.through(connection))
        result = await complete_in_transaction(connection, batch, own)
        answers = zip(claimed, result.answers, strict=True)
        if refused := {row.task_id for row, answer in answers if isinstance(answer, Exception)}:
            raise _NotReused(refused)
        if others := originals.keys() - await _mark(connection, batch, originals):
            raise _NotReused(others)
        return result

    async def _claim(self, connection: Connection, originals: Originals) -> list[ClaimedTask]:
        tasks = list(originals)
        await connection.execute(queries("reuse")["wake_here"], tasks)
        any_runtime: list[str | None] = [None] * len(tasks)
        asked = tasks, [f"dispatcher {self.options.replica}"] * len(tasks), [uuid4() for _ in tasks], any_runtime
        rows = await fetch_rows(connection, queries("claim")["claim_tasks"], ClaimedTask, *asked)
        if left := originals.keys() - {row.task_id for row in rows}:
            raise _NotReused(left)
        return rows

    async def _completion(
        self, connection: Connection, row: ClaimedTask, parts: Sequence[OriginalPartition]
    ) -> Completion:
        job = await self.options.jobs.through(connection).get(row.job_id)
        inputs = INPUTS.decode(row.inputs or "[]")
        claims = self.tokens.claims_for(job, row.task_id, row.attempt, inputs, names=NAMES.decode(row.names or "{}"))
        request = CompleteRequest(
            task_id=row.task_id,
            attempt=row.attempt,
            lease_token=row.lease_token,
            status="Completed",
            outputs=[_output(part, _output_of(job, part)) for part in parts],
            events=[_event(part, _output_of(job, part)) for part in parts],
        )
        return completion_of(request, claims, {part.dataset_uuid: _schema(part) for part in parts if part.schema_hash})


async def _find_originals(connection: Connection, tasks: Sequence[UUID]) -> Originals:
    found: dict[UUID, list[OriginalPartition]] = {}
    for part in await fetch_rows(connection, queries("reuse")["find_originals"], OriginalPartition, tasks, codes()):
        found.setdefault(part.task_id, []).append(part)
    return found


def _output_of(job: StoredJob, part: OriginalPartition) -> StoredOutput:
    return next(output for output in job.outputs if output.dataset_uuid == part.dataset_uuid)


def _output(part: OriginalPartition, output: StoredOutput) -> OutputBody:
    return OutputBody(
        dataset_uuid=output.dataset_uuid,
        dataset_version=output.dataset_version,
        output_index=output.output_index,
        location=part.location,
        row_count=part.row_count,
        bytes=part.bytes,
        schema_hash=part.schema_hash,
        files=msgspec.json.decode(part.files, type=list[dict[str, Any]]),
        partition_key=part.partition_key,
        start=part.start,
        end=part.end,
        column_hashes=None if part.column_hashes is None else msgspec.json.decode(part.column_hashes),
        addresses=part.addresses,
    )


def _event(part: OriginalPartition, output: StoredOutput) -> EventBody:
    return EventBody(
        dataset_uuid=output.dataset_uuid,
        dataset_version=output.dataset_version,
        partition_key=part.partition_key,
        start=part.start,
        end=part.end,
    )


def _schema(part: OriginalPartition) -> Schema:
    return Schema(part.schema_hash or "", msgspec.json.decode(part.columns or "[]", type=list[ColumnEntry]))


async def _mark(connection: Connection, batch: Sequence[Completion], originals: Originals) -> set[UUID]:
    """Those whose claim has pinned what the key of their original is of."""
    requests = [completion.request for completion in batch]
    generations = {output.dataset_version for request in requests for output in request.outputs}
    marked = await fetch_column(
        connection,
        queries("reuse")["mark_memoized"],
        [request.task_id for request in requests],
        [originals[request.task_id][0].original for request in requests],
        [originals[request.task_id][0].memo_key for request in requests],
        list(generations),
    )
    return set(marked)
