"""What only the queue in Postgres has: a server that restarts, roles, plans and fronts."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from datetime import timedelta
from urllib.parse import urlsplit

import asyncpg
import psycopg
import pytest

from tests.support.postgres import RunningServer
from tests.support.queues import HOUR, PLENTY, closing, drain, outgoing, receive_message
from tests.support.waiting import until
from tracelake.adapters.pg import queue as queue_pg
from tracelake.adapters.pg.queue import PgQueue
from tracelake.errors import DatabaseUnavailable, SchemaMismatch
from tracelake.ports import Outgoing, Queue

pytestmark = pytest.mark.anyio


async def test_the_age_is_that_of_the_oldest_message_that_is_ready(queue_role: str) -> None:
    async with closing(PgQueue(queue_role)) as queue:
        await queue.publish("q", outgoing(b"waits"))
        assert (await queue.depth("q")).oldest_age_seconds > 0
        await receive_message(queue)
        assert (await queue.depth("q")).oldest_age_seconds == 0


async def test_a_restart_of_the_server_in_the_middle_loses_nothing(queue_role: str, postgres: RunningServer) -> None:
    """The server dies without a chance to write anything down, while some publish, some receive and some wait."""
    accepted: set[bytes] = set()
    received: set[bytes] = set()
    stop, published = asyncio.Event(), asyncio.Event()

    async def publish_steadily(queue: Queue) -> None:
        number = 0
        while not stop.is_set():
            batch = [b"%d" % (number + offset) for offset in range(5)]
            number += 5
            await queue.publish("q", outgoing(*batch))
            accepted.update(batch)
        published.set()

    async def receive_steadily(queue: Queue) -> None:
        while not (published.is_set() and accepted <= received):
            visibility, wait = timedelta(seconds=1), timedelta(milliseconds=200)
            deliveries = await queue.receive("q", max_messages=7, visibility=visibility, wait=wait)
            received.update(delivery.body for delivery in deliveries)
            await queue.ack("q", [delivery.receipt for delivery in deliveries])

    async with (
        closing(PgQueue(queue_role, max_receives=100, retry_for=PLENTY)) as queue,
        closing(PgQueue(queue_role, retry_for=timedelta(milliseconds=300))) as impatient,
    ):
        idle = asyncio.create_task(receive_message(queue, "idle"))
        working = [asyncio.create_task(work(queue)) for work in (publish_steadily, receive_steadily, receive_steadily)]
        for _ in range(2):
            await until(more_than(received, len(received) + 50), "50 more are received")
            postgres.stop(signal.SIGQUIT)
            with pytest.raises(DatabaseUnavailable):  # while this call is answered, all others turn to it too
                await impatient.depth("q")
            postgres.start()
        stop.set()
        await asyncio.wait_for(asyncio.gather(*working), PLENTY.total_seconds())
        assert accepted <= received
        await queue.publish("idle", outgoing(b"at last"))
        assert (await asyncio.wait_for(idle, PLENTY.total_seconds())).body == b"at last"


async def test_a_call_while_the_server_is_down_raises_and_the_next_one_after_works(
    queue_role: str, postgres: RunningServer
) -> None:
    async with closing(PgQueue(queue_role, retry_for=timedelta(seconds=3))) as queue:
        await queue.publish("q", outgoing(b"before"))
        postgres.stop(signal.SIGQUIT)
        try:
            with pytest.raises(DatabaseUnavailable) as refused:
                await queue.publish("q", outgoing(b"lost, and said so"))
            assert refused.value.retryable
            assert queue_role not in str(refused.value)
            with pytest.raises(DatabaseUnavailable):
                await queue.receive("q", max_messages=1, visibility=HOUR, wait=timedelta(milliseconds=300))
        finally:
            postgres.start()
        assert (await receive_message(queue)).body == b"before"


async def test_a_statement_that_hangs_is_given_up(queue_role: str, queue_db: str) -> None:
    async with closing(PgQueue(queue_role, retry_for=timedelta(seconds=3))) as queue:
        with psycopg.connect(queue_db) as admin:
            admin.execute("LOCK TABLE pgqueue.messages IN ACCESS EXCLUSIVE MODE")
            with pytest.raises(DatabaseUnavailable):
                await queue.publish("q", outgoing(b"x"))
        await queue.publish("after", outgoing(b"y"))
        assert (await receive_message(queue, "after")).body == b"y"


async def test_a_database_that_refuses_its_user_is_distinguished_from_one_that_is_unreachable(
    queue_role: str, queue_db: str
) -> None:
    url = urlsplit(queue_role)
    dsns = {
        "password": url._replace(netloc=f"{url.username}:wrong@{url.netloc.rpartition('@')[2]}").geturl(),
        "does not exist": url._replace(path="/nowhere").geturl(),
        "permission denied": queue_role,
    }
    with psycopg.connect(queue_db, autocommit=True) as admin:
        admin.execute(f"REVOKE ALL ON ALL FUNCTIONS IN SCHEMA pgqueue FROM {url.username}".encode())
    for said, dsn in dsns.items():
        async with closing(PgQueue(dsn)) as queue:
            with pytest.raises(SchemaMismatch, match=said):
                await queue.depth("q")


async def test_the_functions_are_the_only_way_in(queue_role: str) -> None:
    connection = await asyncpg.connect(queue_role)
    try:
        for table in ("messages", "dead_letters"):
            for sql in ("SELECT 1 FROM {}", "DELETE FROM {}", "TRUNCATE {}", "COPY {} TO STDOUT"):
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    await connection.execute(sql.format(f"pgqueue.{table}"))
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute("CREATE FUNCTION pgqueue.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'")
    finally:
        await connection.close()


async def test_no_role_may_call_the_functions_without_a_grant(queue_db: str) -> None:
    connection = await asyncpg.connect(queue_db)
    try:
        open_to_all = await connection.fetch("""
            SELECT proname FROM pg_proc
            WHERE pronamespace = 'pgqueue'::regnamespace AND has_function_privilege('public', oid, 'EXECUTE')""")
        assert open_to_all == []
        loose = await connection.fetch("""
            SELECT proname FROM pg_proc
            WHERE pronamespace = 'pgqueue'::regnamespace
            AND NOT (prosecdef AND 'search_path=pg_catalog, pg_temp' = ANY (proconfig))""")
        assert loose == []
    finally:
        await connection.close()


async def test_every_table_column_and_function_says_what_it_is(queue_db: str) -> None:
    connection = await asyncpg.connect(queue_db)
    try:
        silent = await connection.fetch("""
            SELECT c.relname, a.attname FROM pg_class AS c
            JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum >= 0 AND NOT a.attisdropped
            WHERE c.relnamespace = 'pgqueue'::regnamespace AND c.relkind = 'r'
            AND (col_description(c.oid, a.attnum) IS NULL OR obj_description(c.oid, 'pg_class') IS NULL)
            UNION ALL
            SELECT proname, '' FROM pg_proc
            WHERE pronamespace = 'pgqueue'::regnamespace AND obj_description(oid, 'pg_proc') IS NULL""")
        assert silent == []
    finally:
        await connection.close()


@pytest.mark.parametrize("analyzed_when", ["empty", "full"])
async def test_no_verb_reads_more_than_it_takes(queue_db: str, analyzed_when: str) -> None:
    """With the worst statistics a planner can have: those of the empty table, when it is full."""
    connection = await asyncpg.connect(queue_db)
    try:
        if analyzed_when == "empty":
            await connection.execute("ANALYZE pgqueue.messages")
        for name in ("q", "other"):
            await connection.execute("SELECT pgqueue.publish($1, $2, NULL)", name, [b"x"] * 2000)
        if analyzed_when == "full":
            await connection.execute("ANALYZE pgqueue.messages")
        take = "SELECT receipt FROM pgqueue.receive('q', 10, '1 hour', 5, 0, '-infinity')"
        receipts = [row["receipt"] for row in await connection.fetch(take)]
        for sql, arguments in {
            take: (),
            "SELECT pgqueue.extend('q', $1, '1 hour')": (receipts,),
            "SELECT pgqueue.ack('q', $1)": (receipts,),
            "SELECT pgqueue.release('q', $1, '0')": (receipts,),
            "SELECT pgqueue.next_due('q', 0, '-infinity')": (),
        }.items():
            for _ in range(7):  # after five, the plan no longer knows the arguments
                assert await rows_read(connection, sql, *arguments) <= 60, sql
    finally:
        await connection.close()


async def test_a_receiver_steps_over_what_vacuum_may_not_remove(queue_role: str, queue_db: str) -> None:
    admin = await asyncpg.connect(queue_db)
    try:
        with psycopg.connect(queue_db) as backup:
            backup.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            backup.execute("SELECT 1 FROM pg_class")  # from here on, no row version may go
            async with closing(PgQueue(queue_role)) as queue:
                for _ in range(10):
                    await queue.publish("q", outgoing(*([b"x"] * 100)))
                    await drain(queue, 100)
                await queue.publish("q", outgoing(*([b"x"] * 10)))
            start = await admin.fetchval("SELECT min(turn) FROM pgqueue.messages")
            take = "SELECT pgqueue.receive('q', 10, '1 hour', 5, $1, $2)"
            assert await entries_read(admin, take, 0, queue_pg.FRONT) > 1000
            assert await entries_read(admin, take, start, queue_pg.FRONT) < 20
    finally:
        await admin.close()


async def test_a_message_committed_late_is_found_behind_the_front(queue_role: str, queue_db: str) -> None:
    """Its place in the queue is that of its publish, which may be long before its commit."""
    async with closing(PgQueue(queue_role)) as queue, closing(PgQueue(queue_role)) as other:
        with psycopg.connect(queue_db) as slow:
            slow.execute("SELECT pgqueue.publish('q', ARRAY['late'::bytea], NULL)")
            await other.publish("q", [Outgoing(b"first", delay=3 * queue_pg.SWEEP_MARGIN)])
            assert (await receive_message(queue)).body == b"first"
            slow.commit()
        assert (await receive_message(queue)).body == b"late"


async def rows_read(connection: asyncpg.Connection[asyncpg.Record], sql: str, *arguments: object) -> int:
    """How many rows of the table one statement looks at; what it changed is taken back."""
    return await _counted(
        connection,
        "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'messages'",
        sql,
        *arguments,
    )


async def entries_read(connection: asyncpg.Connection[asyncpg.Record], sql: str, *arguments: object) -> int:
    """How many index entries one statement steps over, dead ones included."""
    return await _counted(
        connection, "SELECT pg_stat_get_xact_tuples_returned('pgqueue.messages_turn'::regclass)", sql, *arguments
    )


async def _counted(connection: asyncpg.Connection[asyncpg.Record], counter: str, sql: str, *arguments: object) -> int:
    transaction = connection.transaction()
    await transaction.start()
    try:
        before = await connection.fetchval(counter)
        await connection.fetch(sql, *arguments)
        return int(await connection.fetchval(counter)) - int(before)
    finally:
        await transaction.rollback()


def more_than(seen: set[bytes], count: int) -> Callable[[], Awaitable[bool]]:
    async def are_more() -> bool:
        return len(seen) > count

    return are_more
