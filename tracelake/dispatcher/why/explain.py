"""`trace why`: the chain from the event by its rule to task, attempts and commit, or the rule that stopped it."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import asyncpg
import msgspec

from tracelake.dispatcher.datasets.show import show_dataset
from tracelake.dispatcher.tasks.show import no_such_task, show_task
from tracelake.dispatcher.why.dataset import LastEvent, WritingJob, dataset_summary
from tracelake.dispatcher.why.event import DatasetEvent, ReadingJob, event_status
from tracelake.dispatcher.why.partition import InputEvent, Producer, missing_ranges, not_written, nothing_made
from tracelake.dispatcher.why.task import Facts, concerns, task_status
from tracelake.domain.ranges import is_partition_key, parse_partition_key
from tracelake.errors import InvalidRequest
from tracelake.store.identity import User
from tracelake.store.queries import Row, fetch_row, fetch_rows, find_row, queries
from tracelake.wire.user.why import Explanation, Step, WhyQuery

REPEATED = "The same event came again and created no second task: the dedupe key was taken."


class CommittedPartition(Row, frozen=True):
    task_id: UUID
    number: int
    partition_key: str


class PartitionTask(Row, frozen=True):
    id: UUID
    status: str


class PartTask(Row, frozen=True):
    id: UUID
    parts: int


async def explain(pool: asyncpg.Pool, user: User, query: WhyQuery) -> Explanation:
    match query:
        case WhyQuery(task=UUID() as task, dataset=None, partition=None):
            return await explain_task(pool, user.org_id, task)
        case WhyQuery(task=None, dataset=str() as dataset, partition=str() as partition):
            return await explain_partition(pool, user, dataset, partition)
        case WhyQuery(task=None, dataset=str() as dataset, partition=None):
            return await explain_dataset(pool, user, dataset)
        case _:
            raise InvalidRequest("name a task, a dataset, or a partition of a dataset", where="query task")


async def explain_dataset(pool: asyncpg.Pool, user: User, dataset: str) -> Explanation:
    detail, sql = await show_dataset(pool, user, dataset), queries("user_why")
    writers = await fetch_rows(pool, sql["list_writers"], WritingJob, user.org_id, detail.dataset_uuid)
    event = await find_row(pool, sql["find_last_event"], LastEvent, user.org_id, detail.dataset_uuid)
    return dataset_summary(detail, writers, event)


class RepeatedEvent(Row, frozen=True):
    id: UUID
    created_at: datetime


async def explain_task(pool: asyncpg.Pool, org_id: UUID, task_id: UUID) -> Explanation:
    sql = queries("user_why")
    task = await show_task(pool, org_id, task_id)
    facts = await pool.fetchval(sql["task_facts"], task_id, org_id)
    if facts is None:
        raise no_such_task(task_id)
    repeated = [
        Step(kind="event", at=event.created_at, id=str(event.id), sentence=REPEATED)
        for event in await fetch_rows(pool, sql["list_repeated_events"], RepeatedEvent, task_id, org_id)
    ]
    return task_status(task, msgspec.json.decode(facts, type=Facts), repeated)


async def explain_partition(pool: asyncpg.Pool, user: User, dataset: str, partition: str) -> Explanation:
    detail, sql = await show_dataset(pool, user, dataset), queries("user_why")
    name = detail.name or str(detail.dataset_uuid)
    subject = f"{name} {partition}"
    key = (user.org_id, detail.dataset_uuid, partition, *_ends(partition))
    if current := await find_row(pool, sql["find_partition"], CommittedPartition, *key):
        chain = await explain_task(pool, user.org_id, current.task_id)
        verdict = f"{current.partition_key} is at commit {current.number}. {chain.verdict}"
        steps = [step for step in chain.steps if concerns(step, detail.dataset_uuid)]
        return msgspec.structs.replace(chain, subject=subject, verdict=verdict, steps=steps, stopped=None)
    task = await find_row(pool, sql["find_task"], PartitionTask, *key)
    if event := await find_row(pool, sql["find_event"], DatasetEvent, *key):
        return await _explain_event(pool, user.org_id, (subject, name), event, task)
    if task:
        chain = await explain_task(pool, user.org_id, task.id)
        return not_written(msgspec.structs.replace(chain, subject=subject), partition)
    if part := await find_row(pool, sql["find_part"], PartTask, *key):
        chain = await explain_task(pool, user.org_id, part.id)
        return missing_ranges(msgspec.structs.replace(chain, subject=subject), partition, part.parts)
    events = await fetch_rows(pool, sql["list_input_events"], InputEvent, *key)
    producer = await fetch_row(pool, sql["find_producer"], Producer, user.org_id, detail.dataset_uuid)
    return nothing_made(subject, partition, producer, events)


async def _explain_event(
    pool: asyncpg.Pool, org_id: UUID, subjects: tuple[str, str], event: DatasetEvent, task: PartitionTask | None
) -> Explanation:
    """The dataset had an event about the partition, and no rows: the chain leads through its own event."""
    readers = await fetch_rows(pool, queries("user_why")["list_readers"], ReadingJob, event.id, org_id)
    sender = event.producer_task_id
    producer = await explain_task(pool, org_id, sender) if sender else None
    newer = None
    if task and task.id != sender and task.status not in {"Completed", "Canceled"}:
        newer = (await explain_task(pool, org_id, task.id)).stopped
    return event_status(subjects, event, readers, producer, newer)


def _ends(partition: str) -> tuple[int | None, int | None]:
    """Half-open, for a range; both None for a label, so that they match no range."""
    if not is_partition_key(partition):
        return None, None
    span = parse_partition_key(partition)
    return span.start, span.stop
