"""`trace why`: from the event by its rule to task, attempts and commit, or the exact rule that stopped it."""

from __future__ import annotations

from uuid import UUID

import asyncpg
import msgspec

from tracelake.dispatcher.datasets.show import show_dataset
from tracelake.dispatcher.tasks.show import no_such_task, show_task
from tracelake.dispatcher.why.dataset import dataset_summary
from tracelake.dispatcher.why.event import event_status
from tracelake.dispatcher.why.partition import missing_ranges, not_written, nothing_made
from tracelake.dispatcher.why.task import Facts, commit_of, explained
from tracelake.domain.ranges import is_partition_key, parse_partition_key
from tracelake.errors import InvalidRequest
from tracelake.store.identity import User
from tracelake.store.queries import queries
from tracelake.wire.user_messages import Explanation, Step, WhyQuery


async def explain(pool: asyncpg.Pool, user: User, asked: WhyQuery) -> Explanation:
    match asked:
        case WhyQuery(task=UUID() as task, dataset=None, partition=None):
            return await explain_task(pool, user.org_id, task)
        case WhyQuery(task=None, dataset=str() as dataset, partition=str() as partition):
            return await explain_partition(pool, user, dataset, partition)
        case WhyQuery(task=None, dataset=str() as dataset, partition=None):
            return await explain_dataset(pool, user, dataset)
        case _:
            raise InvalidRequest("ask about a task, a dataset, or a partition of a dataset", where="query task")


async def explain_dataset(pool: asyncpg.Pool, user: User, dataset: str) -> Explanation:
    found = await show_dataset(pool, user, dataset)
    writers = await pool.fetch(queries("user_why")["writers_of"], user.org_id, found.dataset_uuid)
    event = await pool.fetchrow(queries("user_why")["last_event_of"], user.org_id, found.dataset_uuid)
    return dataset_summary(found, [dict(row) for row in writers], dict(event) if event else None)


async def explain_task(pool: asyncpg.Pool, org_id: UUID, task_id: UUID) -> Explanation:
    sql = queries("user_why")
    task = await show_task(pool, org_id, task_id)
    facts = await pool.fetchval(sql["task_facts"], task_id, org_id)
    if facts is None:
        raise no_such_task(task_id)
    same = await pool.fetch(sql["events_like"], task_id, org_id)
    repeated = [
        Step(
            kind="event",
            at=row["created_at"],
            id=str(row["id"]),
            sentence="The same news came again and made no second task: the dedupe key was taken.",
        )
        for row in same
    ]
    return explained(task, msgspec.json.decode(facts, type=Facts), repeated)


async def explain_partition(pool: asyncpg.Pool, user: User, dataset: str, partition: str) -> Explanation:
    found = await show_dataset(pool, user, dataset)
    sql, ends = queries("user_why"), _ends(partition)
    subject = f"{found.name or found.dataset_uuid} {partition}"
    at = (user.org_id, found.dataset_uuid, partition, *ends)
    if committed := await pool.fetchrow(sql["partition_in_force"], *at):
        chain = await explain_task(pool, user.org_id, committed["task_id"])
        verdict = f"{committed['partition_key']} stands at commit {committed['number']}. {chain.verdict}"
        steps = [step for step in chain.steps if commit_of(step, found.dataset_uuid)]
        return msgspec.structs.replace(chain, subject=subject, verdict=verdict, steps=steps, stopped=None)
    task = await pool.fetchrow(sql["task_for_partition"], *at)
    if told := await pool.fetchrow(sql["event_of_partition"], *at):
        return await _told(pool, user.org_id, (subject, found.name or str(found.dataset_uuid)), told, task)
    if task:
        chain = await explain_task(pool, user.org_id, task["id"])
        return not_written(msgspec.structs.replace(chain, subject=subject), partition)
    if part := await pool.fetchrow(sql["part_of_partition"], *at):
        chain = await explain_task(pool, user.org_id, part["id"])
        return missing_ranges(msgspec.structs.replace(chain, subject=subject), partition, part["parts"])
    news = await pool.fetch(sql["events_for_partition"], *at)
    producer = await pool.fetchrow(sql["producer_of"], user.org_id, found.dataset_uuid)
    assert producer is not None  # noqa: S101 - its dataset was found
    return nothing_made(subject, partition, dict(producer), [dict(row) for row in news])


async def _told(
    pool: asyncpg.Pool, org_id: UUID, subject: tuple[str, str], news: asyncpg.Record, task: asyncpg.Record | None
) -> Explanation:
    """The dataset had news of it, and no rows: the chain leads through its own event."""
    readers = await pool.fetch(queries("user_why")["readers_of_event"], news["id"], org_id)
    maker = news["producer_task_id"]
    producer = await explain_task(pool, org_id, maker) if maker else None
    again = None
    if task and task["id"] != maker and task["status"] not in {"Completed", "Canceled"}:
        again = (await explain_task(pool, org_id, task["id"])).stopped
    return event_status(subject, dict(news), [dict(row) for row in readers], producer, again)


def _ends(partition: str) -> tuple[int | None, int | None]:
    """Half-open, if it is a range; both None if it is a label, so that they match no range."""
    if not is_partition_key(partition):
        return None, None
    span = parse_partition_key(partition)
    return span.start, span.stop
