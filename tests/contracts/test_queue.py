"""The guarantees of the `Queue` port, proven on every adapter; then those of one adapter only.

Nothing here asserts how long something took. That a message is invisible is shown by another one that fell due later
and came first; that a wait was woken, by switching off everything but the waking.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from urllib.parse import urlsplit

import asyncpg
import psycopg
import pytest

from tests.support.postgres import RunningServer
from tests.support.waiting import SECONDS, until
from tracelake.adapters import queue_pg
from tracelake.adapters.queue_pg import PgQueue
from tracelake.errors import DatabaseUnavailable, InvalidRequest, SchemaMismatch
from tracelake.ports import (
    BODY_LIMIT_BYTES,
    DELAY_LIMIT,
    Delivery,
    MessageId,
    Outgoing,
    Queue,
    QueueDepth,
    Receipt,
)

pytestmark = pytest.mark.anyio

HOUR = timedelta(hours=1)
PLENTY = timedelta(seconds=SECONDS)
"""A wait that only a defect makes last."""


@dataclass(frozen=True)
class Backend:
    """One adapter under test."""

    adapter: str
    tick: timedelta
    """The shortest duration that the adapter distinguishes from none."""
    soon: timedelta
    """Short enough to wait for, long enough for a few calls on a busy machine."""
    open: Callable[..., Queue]
    """Another instance over the same queues; takes `max_receives`."""
    waits: Callable[[], Awaitable[bool]]
    """Whether a receiver has looked, found nothing, and waits."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def queue_role(queue_db: str) -> Iterator[str]:
    """A DSN of the right that processes have: to call the functions, and nothing else."""
    role, password = f"queue_{secrets.token_hex(4)}", secrets.token_hex(8)
    with psycopg.connect(queue_db, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{password}'".encode())
        admin.execute(f"GRANT USAGE ON SCHEMA pgqueue TO {role}".encode())
        admin.execute(f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA pgqueue TO {role}".encode())
    url = urlsplit(queue_db)
    yield url._replace(netloc=f"{role}:{password}@{url.netloc.rpartition('@')[2]}").geturl()
    with psycopg.connect(queue_db, autocommit=True) as admin:
        admin.execute(f"DROP OWNED BY {role}".encode())
        admin.execute(f"DROP ROLE {role}".encode())


@pytest.fixture(params=["pgqueue"])
def backend(request: pytest.FixtureRequest) -> Backend:
    made: dict[str, Callable[[], Backend]] = {
        "pgqueue": lambda: pgqueue(request.getfixturevalue("queue_db"), request.getfixturevalue("queue_role"))
    }
    return made[request.param]()


def pgqueue(admin_dsn: str, dsn: str) -> Backend:
    async def waits() -> bool:
        with psycopg.connect(admin_dsn) as admin:
            last = admin.execute(
                "SELECT query FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle'"
            ).fetchall()
        return any("receive_any" in query for (query,) in last) and any("LISTEN" in query for (query,) in last)

    def opened(max_receives: int = 5) -> Queue:
        return PgQueue(dsn, max_receives=max_receives)

    tick, soon = timedelta(milliseconds=50), timedelta(seconds=2)
    return Backend(adapter="pgqueue", tick=tick, soon=soon, open=opened, waits=waits)


@pytest.fixture
async def queue(backend: Backend) -> AsyncIterator[Queue]:
    async with closing(backend.open()) as opened:
        yield opened


@asynccontextmanager
async def closing(queue: Queue) -> AsyncIterator[Queue]:
    try:
        yield queue
    finally:
        await queue.close()


async def test_what_is_published_is_delivered_and_ends_with_its_ack(queue: Queue) -> None:
    bodies = {b"message %d" % number for number in range(250)}
    await queue.publish("q", outgoing(*bodies))
    deliveries = await drain(queue, len(bodies))
    assert {delivery.body for delivery in deliveries} == bodies
    assert len({delivery.id for delivery in deliveries}) == len(bodies)
    assert {delivery.receives for delivery in deliveries} == {1}
    assert await queue.depth("q") == QueueDepth(0, 0, 0, 0, 0)
    assert await look(queue) == []


async def test_queues_do_not_mix(queue: Queue) -> None:
    await queue.publish("a", outgoing(b"for a"))
    await queue.publish("b", outgoing(b"for b"))
    assert [delivery.body for delivery in await look(queue, "b")] == [b"for b"]
    (delivery,) = await look(queue, "a")
    assert delivery.body == b"for a"
    assert await queue.ack("b", [delivery.receipt]) == set()
    assert await queue.ack("a", [delivery.receipt]) == {delivery.receipt}


@pytest.mark.parametrize(
    "body",
    [
        b"\0",
        bytes(range(256)),
        b"\xff\xfe\x00\x80 not text",
        '{"task_id": "Ünï↯😀", "nul": "\\u0000"}'.encode(),
        "\N{ZERO WIDTH JOINER}\r\n\t\x1b ]]> <&> ' \"".encode(),
        b"x" * (BODY_LIMIT_BYTES - 1),
    ],
    ids=["nul", "every byte", "not text", "unicode", "markup", "largest"],
)
async def test_a_body_arrives_byte_for_byte(queue: Queue, body: bytes) -> None:
    await queue.publish("q", outgoing(body))
    assert (await receive_message(queue)).body == body


@pytest.mark.parametrize("size", [0, BODY_LIMIT_BYTES, 4 * BODY_LIMIT_BYTES])
async def test_a_body_without_bytes_or_with_too_many_is_refused(queue: Queue, size: int) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await queue.publish("q", [Outgoing(b"fits"), Outgoing(b"x" * size)])
    assert refused.value.where == "/body"
    assert not refused.value.retryable
    assert (await queue.depth("q")).ready == 0


async def test_a_receive_gives_no_more_than_it_was_asked_for(queue: Queue) -> None:
    await queue.publish("q", outgoing(*(b"%d" % number for number in range(30))))
    seen: set[MessageId] = set()
    for size in (1, 3, 10):
        deliveries = await queue.receive("q", max_messages=size, visibility=HOUR, wait=PLENTY)
        assert 1 <= len(deliveries) <= size
        assert seen.isdisjoint(delivery.id for delivery in deliveries)
        seen |= {delivery.id for delivery in deliveries}


async def test_an_empty_batch_is_nothing_to_do(queue: Queue) -> None:
    await queue.publish("q", [])
    assert await queue.ack("q", []) == set()
    assert await queue.extend("q", [], HOUR) == set()
    assert await queue.release("q", []) == set()
    assert await queue.redrive("q", []) == 0


async def test_what_cannot_be_meant_is_refused(queue: Queue) -> None:
    with pytest.raises(InvalidRequest, match="delayed"):
        Outgoing(b"x", delay=DELAY_LIMIT + timedelta(seconds=1))
    with pytest.raises(InvalidRequest, match="delayed"):
        Outgoing(b"x", delay=timedelta(seconds=-1))
    for name in ("", "a b", "a/b", "ü", "x" * 65, "x\n"):
        with pytest.raises(InvalidRequest, match="name of a queue"):
            await queue.publish(name, outgoing(b"x"))
    for count in (0, -1, 10**9):
        with pytest.raises(InvalidRequest, match="not between"):
            await queue.receive("q", max_messages=count, visibility=HOUR)
    for visibility in (timedelta(), timedelta(seconds=-1), timedelta(days=1)):
        with pytest.raises(InvalidRequest, match="not between"):
            await queue.receive("q", max_messages=1, visibility=visibility)
        with pytest.raises(InvalidRequest, match="not between"):
            await queue.extend("q", [Receipt("x")], visibility)
    with pytest.raises(InvalidRequest, match="not between"):
        await queue.receive("q", max_messages=1, visibility=HOUR, wait=timedelta(seconds=-1))


async def test_an_unknown_queue_is_an_empty_one(queue: Queue) -> None:
    assert await look(queue, "never-heard-of") == []
    assert await queue.depth("never-heard-of") == QueueDepth(0, 0, 0, 0, 0)
    assert await queue.dead_letters("never-heard-of", 10) == []
    assert await queue.redrive("never-heard-of") == 0


async def test_what_is_no_receipt_counts_for_nothing(queue: Queue) -> None:
    wrong = [Receipt("nonsense"), Receipt(""), Receipt("00000000-0000-7000-8000-000000000000")]
    await queue.publish("q", outgoing(b"stays"))
    assert await queue.ack("q", wrong) == set()
    assert await queue.extend("q", wrong, HOUR) == set()
    assert await queue.release("q", wrong) == set()
    assert (await queue.depth("q")).ready == 1


async def test_a_held_message_is_delivered_to_no_other_receiver(backend: Backend, queue: Queue) -> None:
    await queue.publish("q", outgoing(b"once"))
    assert len(await look(queue)) == 1
    async with closing(backend.open()) as other:
        assert await look(other) == []
    assert await look(queue) == []


async def test_a_message_without_ack_comes_again_when_its_visibility_ends(backend: Backend, queue: Queue) -> None:
    await queue.publish("q", outgoing(b"again"))
    first = await receive_message(queue, visibility=backend.tick)
    second = await receive_message(queue)
    assert (second.id, second.body, second.sent_at) == (first.id, first.body, first.sent_at)
    assert second.receipt != first.receipt
    assert second.receives == 2


async def test_a_stale_receipt_cannot_do_anything(backend: Backend, queue: Queue) -> None:
    await queue.publish("q", outgoing(b"again"))
    stale = await receive_message(queue, visibility=backend.tick)
    newest = await receive_message(queue)
    assert await queue.extend("q", [stale.receipt], HOUR) == set()
    assert await queue.release("q", [stale.receipt]) == set()
    assert await queue.ack("q", [stale.receipt]) == set()
    assert (await queue.depth("q")).in_flight == 1
    both = [stale.receipt, newest.receipt]
    assert await queue.extend("q", both, HOUR) == {newest.receipt}
    assert await queue.ack("q", both) == {newest.receipt}
    assert await queue.ack("q", both) == set()


async def test_an_extended_message_stays_invisible(backend: Backend, queue: Queue) -> None:
    await queue.publish("q", outgoing(b"long work"))
    held = await receive_message(queue, visibility=backend.soon)
    assert await queue.extend("q", [held.receipt], HOUR) == {held.receipt}
    await queue.publish("q", [Outgoing(b"later", delay=backend.soon)])
    assert (await receive_message(queue)).body == b"later"
    assert await queue.ack("q", [held.receipt]) == {held.receipt}


async def test_what_has_ended_cannot_be_extended_or_given_back(backend: Backend, queue: Queue) -> None:
    await queue.publish("q", outgoing(b"slow"))
    late = await receive_message(queue, visibility=backend.tick)
    await until(lambda: is_ready(queue), "the message is ready")
    assert await queue.extend("q", [late.receipt], HOUR) == set()
    assert await queue.release("q", [late.receipt], HOUR) == set()
    assert (await receive_message(queue)).id == late.id


async def test_a_released_message_comes_again_at_once(queue: Queue) -> None:
    await queue.publish("q", outgoing(b"not mine"))
    held = await receive_message(queue)
    assert await queue.release("q", [held.receipt]) == {held.receipt}
    assert await queue.extend("q", [held.receipt], HOUR) == set()
    again = await receive_message(queue)
    assert (again.id, again.receives) == (held.id, 2)


async def test_a_message_released_with_a_delay_comes_after_it(backend: Backend, queue: Queue) -> None:
    await queue.publish("q", outgoing(b"later"))
    held = await receive_message(queue)
    await queue.release("q", [held.receipt], backend.soon)
    await queue.publish("q", outgoing(b"now"))
    assert [(await receive_message(queue)).body for _ in range(2)] == [b"now", b"later"]


async def test_a_delayed_message_comes_after_its_delay(backend: Backend, queue: Queue) -> None:
    await queue.publish("q", [Outgoing(b"later", delay=backend.soon), Outgoing(b"now")])
    assert (await queue.depth("q")).delayed == 1
    assert [(await receive_message(queue)).body for _ in range(2)] == [b"now", b"later"]


async def test_a_message_delivered_too_often_becomes_a_dead_letter_and_says_why(backend: Backend) -> None:
    async with closing(backend.open(max_receives=2)) as queue:
        await queue.publish("q", outgoing(b"poison"))
        deliveries = [await release_message(queue) for _ in range(2)]
        assert await look(queue) == []
        (dead,) = await queue.dead_letters("q", 10)
        assert (dead.id, dead.body, dead.receives) == (deliveries[0].id, b"poison", 2)
        assert "2 times" in dead.reason
        assert dead.sent_at == deliveries[0].sent_at <= dead.died_at
        assert await queue.depth("q") == QueueDepth(0, 0, 0, 1, 0)
        assert await queue.ack("q", [delivery.receipt for delivery in deliveries]) == set()


async def test_a_redriven_message_begins_anew(backend: Backend) -> None:
    async with closing(backend.open(max_receives=1)) as queue:
        await queue.publish("q", outgoing(b"poison"))
        await release_message(queue)
        assert await look(queue) == []
        assert await queue.redrive("q") == 1
        assert await queue.dead_letters("q", 10) == []
        again = await receive_message(queue)
        assert (again.body, again.receives) == (b"poison", 1)
        assert await queue.ack("q", [again.receipt]) == {again.receipt}


async def test_a_redrive_takes_only_the_named_ones_of_its_queue(backend: Backend) -> None:
    async with closing(backend.open(max_receives=1)) as queue:
        for name in ("q", "other"):
            await queue.publish(name, outgoing(b"1", b"2", b"3"))
            for _ in range(3):
                await release_message(queue, name)
            assert await look(queue, name) == []
        dead = await queue.dead_letters("q", 10)
        assert [letter.body for letter in await queue.dead_letters("q", 2)] == [letter.body for letter in dead[:2]]
        wanted = next(letter for letter in dead if letter.body == b"2")
        assert await queue.redrive("other", [wanted.id]) == 0
        assert await queue.redrive("q", [wanted.id, MessageId("nonsense"), MessageId("-1")]) == 1
        assert (await receive_message(queue)).body == b"2"
        assert {letter.body for letter in await queue.dead_letters("q", 10)} == {b"1", b"3"}
        assert (await queue.depth("other")).dead == 3


async def test_dead_letters_do_not_block_the_messages_behind_them(backend: Backend) -> None:
    async with closing(backend.open(max_receives=1)) as queue:
        await queue.publish("q", outgoing(b"1", b"2", b"3"))
        for _ in range(3):
            await release_message(queue)
        await queue.publish("q", outgoing(b"alive"))
        (delivery,) = await queue.receive("q", max_messages=1, visibility=HOUR)
        assert delivery.body == b"alive"


async def test_depth_counts_each_message_once(queue: Queue) -> None:
    await queue.publish("q", [*outgoing(*(b"%d" % n for n in range(5))), Outgoing(b"later", delay=DELAY_LIMIT)])
    held = await queue.receive("q", max_messages=2, visibility=HOUR)
    depth = await queue.depth("q")
    assert replace(depth, oldest_age_seconds=0) == QueueDepth(
        ready=3, in_flight=2, delayed=1, dead=0, oldest_age_seconds=0
    )
    assert depth.oldest_age_seconds > 0
    await queue.ack("q", [held[0].receipt])
    await queue.release("q", [held[1].receipt])
    assert replace(await queue.depth("q"), oldest_age_seconds=0) == QueueDepth(4, 0, 1, 0, 0)


async def test_two_receivers_share_without_overlap(backend: Backend, queue: Queue) -> None:
    bodies = {b"%d" % number for number in range(400)}
    await queue.publish("q", outgoing(*bodies))
    async with closing(backend.open()) as other:
        halves = await asyncio.gather(*(take_all(receiver) for receiver in (queue, other, queue, other)))
    taken = [delivery.body for half in halves for delivery in half]
    assert sorted(taken) == sorted(bodies)


async def test_a_waiting_receiver_is_woken_by_a_publish(
    backend: Backend, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    if backend.adapter == "pgqueue":
        monkeypatch.setattr(queue_pg, "POLL_SECONDS", HOUR.total_seconds())
        monkeypatch.setattr(queue_pg, "SWEEP_SECONDS", HOUR.total_seconds())
    async with closing(backend.open()) as publisher:
        for number in range(5):
            waiting = asyncio.create_task(receive_message(queue))
            await until(backend.waits, "the receiver waits")
            assert not waiting.done()
            await publisher.publish("q", outgoing(b"%d" % number))
            delivery = await asyncio.wait_for(waiting, PLENTY.total_seconds())
            assert delivery.body == b"%d" % number
            await queue.ack("q", [delivery.receipt])


async def test_a_waiting_receiver_is_woken_when_a_message_falls_due(
    backend: Backend, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    if backend.adapter == "pgqueue":
        monkeypatch.setattr(queue_pg, "POLL_SECONDS", HOUR.total_seconds())
        monkeypatch.setattr(queue_pg, "SWEEP_SECONDS", HOUR.total_seconds())
    await queue.publish("q", [Outgoing(b"delayed", delay=4 * backend.tick)])
    delayed = await receive_message(queue, visibility=4 * backend.tick)
    again = await receive_message(queue)
    assert (again.id, again.receives) == (delayed.id, 2)


async def test_every_waiting_receiver_gets_its_message(backend: Backend, queue: Queue) -> None:
    async with closing(backend.open()) as other:
        waiting = [asyncio.create_task(receive_message(receiver)) for receiver in (queue, other, queue, other)]
        await until(backend.waits, "the receiver waits")
        await queue.publish("q", outgoing(b"0", b"1"))
        await other.publish("q", outgoing(b"2", b"3"))
        deliveries = await asyncio.wait_for(asyncio.gather(*waiting), PLENTY.total_seconds())
    assert sorted(delivery.body for delivery in deliveries) == [b"0", b"1", b"2", b"3"]


async def test_a_wait_for_nothing_ends_empty(backend: Backend, queue: Queue) -> None:
    assert await queue.receive("q", max_messages=1, visibility=HOUR, wait=2 * backend.tick) == []


async def test_canceling_a_receive_loses_nothing(backend: Backend, queue: Queue) -> None:
    # pgqueue gives back at once what a canceled receive had taken; elsewhere it comes when its visibility ends.
    visibility = HOUR if backend.adapter == "pgqueue" else backend.tick
    for turns in range(40):
        waiting = asyncio.create_task(receive_message(queue, visibility=visibility))
        publishing = asyncio.create_task(queue.publish("q", outgoing(b"%d" % turns)))
        for _ in range(turns):
            await asyncio.sleep(0)
        if turns % 2:
            await publishing
        waiting.cancel()
        done = (await asyncio.gather(waiting, return_exceptions=True))[0]
        await publishing
        delivery = done if isinstance(done, Delivery) else await asyncio.wait_for(receive_message(queue), SECONDS)
        assert delivery.body == b"%d" % turns
        assert await queue.ack("q", [delivery.receipt]) == {delivery.receipt}


async def test_a_closed_queue_leaves_nothing_behind(backend: Backend) -> None:
    before = asyncio.all_tasks()
    queue = backend.open()
    waiting = asyncio.create_task(receive_message(queue))
    await until(backend.waits, "the receiver waits")
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await queue.close()
    assert asyncio.all_tasks() == before
    assert not await backend.waits()
    await queue.close()  # twice is not an error


# What only pgqueue entries.


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


async def test_a_group_with_few_messages_does_not_wait_for_one_with_many(queue: Queue) -> None:
    await queue.publish("q", [Outgoing(b"many %d" % number, group=("many", "job")) for number in range(300)])
    for _ in range(3):  # some are received before the others come
        await take(queue, 10)
    await queue.publish("q", [Outgoing(b"few %d" % number, group=("few", "job")) for number in range(3)])
    received = [await take(queue, 1) for _ in range(8)]
    assert sum(body.startswith(b"few") for (body,) in received) == 3


async def test_groups_with_many_messages_take_turns(queue: Queue) -> None:
    for name in ("a", "b", "c"):
        await queue.publish("q", [Outgoing(name.encode(), group=(name, "job")) for _ in range(100)])
    received = [body for _ in range(9) for body in await take(queue, 10)]
    for body in (b"a", b"b", b"c"):
        assert 27 <= received.count(body) <= 33


async def test_the_jobs_of_a_group_take_turns_and_share_its_turn(queue: Queue) -> None:
    jobs = [f"job {number % 4}" for number in range(200)]
    await queue.publish("q", [Outgoing(job.encode(), group=("busy", job)) for job in jobs])
    await queue.publish("q", [Outgoing(b"late", group=("busy", "late")) for _ in range(10)])
    await queue.publish("q", [Outgoing(b"other", group=("other", "job")) for _ in range(100)])
    received = [body for _ in range(10) for body in await take(queue, 10)]
    assert 35 <= received.count(b"other") <= 50, "four jobs of one organisation do not have four turns"
    assert received.count(b"late") >= 5, "a job that comes later does not wait for those before"
    assert all(received.count(b"job %d" % number) >= 5 for number in range(4))


async def test_every_message_of_every_group_is_delivered(queue: Queue) -> None:
    sent = {b"%d/%d/%d" % key for key in itertools.product(range(7), range(3), range(20))}
    groups = {body: tuple(body.decode().split("/")[:2]) for body in sent}
    bodies = sorted(sent)
    for start in range(0, len(bodies), 33):
        batch = bodies[start : start + 33]
        await queue.publish("q", [Outgoing(body, group=(groups[body][0], groups[body][1])) for body in batch])
    assert {delivery.body for delivery in await drain(queue, len(sent))} == sent
    assert await queue.depth("q") == QueueDepth(0, 0, 0, 0, 0)


async def test_several_queues_are_received_in_the_order_given_and_within_their_limits(queue: Queue) -> None:
    await queue.publish("first", outgoing(*([b"first"] * 3)))
    await queue.publish("second", outgoing(*([b"second"] * 10)))
    found = await queue.receive({"first": 2, "second": 10}, max_messages=5, visibility=HOUR)
    assert sorted((delivery.queue, delivery.body) for delivery in found) == [
        *[("first", b"first")] * 2,
        *[("second", b"second")] * 3,
    ]
    for delivery in found:
        assert await queue.ack(delivery.queue, [delivery.receipt]) == {delivery.receipt}
    found = await queue.receive({"second": 1, "first": 10}, max_messages=5, visibility=HOUR)
    assert sorted(delivery.body for delivery in found) == [b"first", b"second"]


async def test_a_wait_for_several_queues_ends_with_a_message_in_any(queue: Queue, backend: Backend) -> None:
    waiting = asyncio.create_task(queue.receive({"a": 5, "b": 5}, max_messages=5, visibility=HOUR, wait=PLENTY))
    await until(backend.waits, "it waits")
    await queue.publish("b", outgoing(b"here"))
    assert [(delivery.queue, delivery.body) for delivery in await waiting] == [("b", b"here")]


async def take(queue: Queue, count: int) -> list[bytes]:
    """The bodies of so many messages at most, acknowledged."""
    found = await queue.receive("q", max_messages=count, visibility=HOUR)
    await queue.ack("q", [delivery.receipt for delivery in found])
    return [delivery.body for delivery in found]


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


def outgoing(*bodies: bytes) -> list[Outgoing]:
    return [Outgoing(body) for body in bodies]


async def look(queue: Queue, name: str = "q") -> list[Delivery]:
    """What is ready now."""
    return await queue.receive(name, max_messages=10, visibility=HOUR)


async def receive_message(queue: Queue, name: str = "q", *, visibility: timedelta = HOUR) -> Delivery:
    deliveries = await queue.receive(name, max_messages=1, visibility=visibility, wait=PLENTY)
    assert len(deliveries) == 1
    return deliveries[0]


async def release_message(queue: Queue, name: str = "q") -> Delivery:
    delivery = await receive_message(queue, name)
    assert await queue.release(name, [delivery.receipt]) == {delivery.receipt}
    return delivery


async def drain(queue: Queue, count: int) -> list[Delivery]:
    """Receive and acknowledge until there have been so many."""
    deliveries: list[Delivery] = []
    while len(deliveries) < count:
        batch = await queue.receive("q", max_messages=10, visibility=HOUR, wait=PLENTY)
        receipts = {delivery.receipt for delivery in batch}
        assert await queue.ack("q", sorted(receipts)) == receipts
        deliveries += batch
    return deliveries


async def take_all(queue: Queue) -> list[Delivery]:
    """Receive until there is nothing."""
    deliveries: list[Delivery] = []
    while batch := await queue.receive("q", max_messages=7, visibility=HOUR):
        deliveries += batch
    return deliveries


async def is_ready(queue: Queue) -> bool:
    return (await queue.depth("q")).ready == 1


def more_than(seen: set[bytes], count: int) -> Callable[[], Awaitable[bool]]:
    async def are_more() -> bool:
        return len(seen) > count

    return are_more
