"""The queue: `python -m bench.queue [--size N] [--backend sqs]`.

Messages a second through publish, receive and ack, by batch size and number of lanes (a lane is one process's loop of
the three calls); beside it, in turns, the same function calls on a naked asyncpg connection, and by pgbench. Then how
long a waiting receiver takes to wake, and whether speed holds while acknowledged messages pile up behind the front,
with vacuum at work and with an old snapshot in its way.

With `--backend sqs`: the same three calls on SQS, which is moto here, as a share of those on Postgres and of the same
requests by a naked client. It says nothing about the speed of AWS.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import asyncpg
import uvloop
from aiobotocore.session import get_session

from bench.report import report
from tests.support.aws.moto import running_moto
from tests.support.postgres import RunningServer, running
from tracelake.adapters.pg.queue import PgQueue
from tracelake.adapters.sqs.queue import SqsQueue
from tracelake.lite.postgres import SUPERUSER, Cluster, binaries
from tracelake.ports import Outgoing
from tracelake.settings import QueueSettings
from tracelake.store.migrate import migrate

BODY: Final = b'{"task_id": "0197f0e2-7a11-7000-8000-000000000000"}'
HOLD: Final = timedelta(seconds=30)
FRONT: Final = datetime(1970, 1, 1, tzinfo=UTC)
BATCHES: Final = (1, 10, 100)
LANES: Final = (1, 4)
HEADLINE: Final = "batch 10, lanes 4"
TURNS: Final = 3

PGBENCH_CYCLE: Final = """
SELECT pgqueue.publish('pgbench-' || :client_id::text, ARRAY[convert_to(repeat('x', 51), 'UTF8')], NULL);
SELECT receipt FROM pgqueue.receive('pgbench-' || :client_id::text, 1, '30 s', 5, 0, '-infinity') \\gset
SELECT pgqueue.ack('pgbench-' || :client_id::text, ARRAY[:receipt::uuid]);
"""

Cycle = Callable[[str, int], Awaitable[int]]
"""One publish, receive and ack of a batch in a queue; returns how many messages went through."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=1000, help="messages per lane and turn, at batch size 10")
    parser.add_argument("--backend", choices=["pg", "sqs"], default="pg")
    options = parser.parse_args()
    size, load = options.size, round(os.getloadavg()[0], 2)
    with server() as postgres:
        dsn = postgres.create_database("queue")
        migrate(dsn, "queue")
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            if options.backend == "sqs":
                with running_moto() as moto, keys_of_aws():
                    result = runner.run(measure_sqs(moto, dsn, size))
            else:
                result = runner.run(measure(postgres, dsn, size))
    report(
        "queue" if options.backend == "pg" else "queue_sqs",
        result["rates"][HEADLINE],
        f"messages/s ({HEADLINE})",
        **result,
        settings={"size": size, "body_bytes": len(BODY), "turns": TURNS, "loop": "uvloop", "load_at_start": load},
    )


async def measure(postgres: RunningServer, dsn: str, size: int) -> dict[str, Any]:
    rates, ratios = await throughput(dsn, size)
    ratios["share_of_pgbench_batch_1_lanes_4"] = await beside_pgbench(postgres, dsn, size)
    ours, bare = await wake_ups(dsn, max(20, size // 10))
    print(f"wake-up: {ours}, bare {bare}")
    ratios["wake_p50_to_bare"] = round(ours["p50"] / bare["p50"], 2)
    ratios["flat"] = await flatness(dsn, size, old_snapshot=False)
    ratios["flat_with_old_snapshot"] = await flatness(dsn, size, old_snapshot=True)
    print(f"flat: {ratios['flat']}, with an old snapshot {ratios['flat_with_old_snapshot']}")
    return {"rates": rates, "wake_up_ms": {"queue": ours, "bare": bare}, "ratios": ratios}


async def measure_sqs(moto: str, dsn: str, size: int) -> dict[str, Any]:
    rates: dict[str, int] = {}
    ratios: dict[str, float] = {}
    for batch in (1, 10):
        for lanes in LANES:
            sqs, bare, pg = list[float](), list[float](), list[float]()
            for _ in range(TURNS):
                for kind, at, found in ((sqs_cycle, moto, sqs), (bare_sqs_cycle, moto, bare), (adapter_cycle, dsn, pg)):
                    async with lanes_of(kind, at, lanes) as cycles:
                        found.append(await rate(cycles, batch, size))
            name, key = f"batch {batch}, lanes {lanes}", f"batch_{batch}_lanes_{lanes}"
            rates[name] = round(statistics.median(sqs))
            ratios[f"share_of_bare_requests_{key}"] = share(sqs, bare)
            ratios[f"share_of_pgqueue_{key}"] = share(sqs, pg)
            print(f"{name}: {rates[name]} messages/s, bare requests {statistics.median(bare):.0f}")
    return {"rates": rates, "ratios": ratios}


def share(ours: list[float], others: list[float]) -> float:
    return round(statistics.median(our / other for our, other in zip(ours, others, strict=True)), 2)


async def throughput(dsn: str, size: int) -> tuple[dict[str, int], dict[str, float]]:
    """Ours and the bare calls take turns, so that what else the machine does hits both."""
    rates: dict[str, int] = {}
    ratios: dict[str, float] = {}
    for batch in BATCHES:
        for lanes in LANES:
            ours, bare = [], []
            for _ in range(TURNS):
                async with lanes_of(adapter_cycle, dsn, lanes) as cycles:
                    ours.append(await rate(cycles, batch, size))
                async with lanes_of(bare_cycle, dsn, lanes) as cycles:
                    bare.append(await rate(cycles, batch, size))
            name = f"batch {batch}, lanes {lanes}"
            rates[name] = round(statistics.median(ours))
            ratios[f"share_of_bare_calls_batch_{batch}_lanes_{lanes}"] = round(
                statistics.median(o / b for o, b in zip(ours, bare, strict=True)), 2
            )
            print(f"{name}: {rates[name]} messages/s, bare calls {statistics.median(bare):.0f}")
    return rates, ratios


async def beside_pgbench(postgres: RunningServer, dsn: str, size: int) -> float:
    """Four lanes of one Python process as a share of four clients written in C."""
    shares = []
    for _ in range(TURNS):
        async with lanes_of(adapter_cycle, dsn, 4) as cycles:
            ours = await rate(cycles, 1, size)
        shares.append(ours / pgbench(postgres, size))
    return round(statistics.median(shares), 2)


async def rate(cycles: list[Cycle], batch: int, size: int) -> float:
    """Messages a second. A small batch gets fewer messages, a large one more, for about the same time."""
    wanted = {1: size // 4, 10: size, 100: size * 4}[batch]

    async def lane(cycle: Cycle) -> int:
        done = 0
        while done < wanted:
            done += await cycle("throughput", batch)
        return done

    for cycle in cycles:
        await cycle("throughput", batch)  # connections, prepared statements
    start = time.perf_counter()
    done = await asyncio.gather(*(lane(cycle) for cycle in cycles))
    return sum(done) / (time.perf_counter() - start)


@asynccontextmanager
async def lanes_of(kind: Callable[[str], Any], dsn: str, lanes: int) -> AsyncIterator[list[Cycle]]:
    made = [kind(dsn) for _ in range(lanes)]
    try:
        yield [await item.__aenter__() for item in made]
    finally:
        for item in made:
            await item.__aexit__(None, None, None)


@asynccontextmanager
async def adapter_cycle(dsn: str) -> AsyncIterator[Cycle]:
    queue = PgQueue(dsn, connections=1)

    async def cycle(name: str, batch: int) -> int:
        await queue.publish(name, [Outgoing(BODY) for _ in range(batch)])
        deliveries = await queue.receive(name, max_messages=batch, visibility=HOLD)
        return len(await queue.ack(name, [delivery.receipt for delivery in deliveries]))

    try:
        yield cycle
    finally:
        await queue.close()


@asynccontextmanager
async def sqs_cycle(endpoint: str) -> AsyncIterator[Cycle]:
    settings = QueueSettings(backend="sqs", endpoint=endpoint, cloudwatch_endpoint=endpoint, create=True)
    queue = SqsQueue(settings)

    async def cycle(name: str, batch: int) -> int:
        await queue.publish(name, [Outgoing(BODY) for _ in range(batch)])
        deliveries = await queue.receive(name, max_messages=batch, visibility=HOLD)
        return len(await queue.ack(name, [delivery.receipt for delivery in deliveries]))

    try:
        yield cycle
    finally:
        await queue.close()


@asynccontextmanager
async def bare_sqs_cycle(endpoint: str) -> AsyncIterator[Cycle]:
    """The same three requests by aiobotocore, and nothing around them."""
    async with get_session().create_client("sqs", region_name="us-east-1", endpoint_url=endpoint) as client:
        url = (await client.create_queue(QueueName="bare"))["QueueUrl"]

        async def cycle(_name: str, batch: int) -> int:
            entries = [{"Id": str(number), "MessageBody": BODY.decode()} for number in range(batch)]
            await client.send_message_batch(QueueUrl=url, Entries=entries)
            seconds = int(HOLD.total_seconds())
            answer = await client.receive_message(QueueUrl=url, MaxNumberOfMessages=batch, VisibilityTimeout=seconds)
            taken = [
                {"Id": str(number), "ReceiptHandle": message["ReceiptHandle"]}
                for number, message in enumerate(answer.get("Messages", ()))
            ]
            if taken:
                await client.delete_message_batch(QueueUrl=url, Entries=taken)
            return len(taken)

        yield cycle


@contextmanager
def keys_of_aws() -> Iterator[None]:
    """For moto, which accepts any."""
    before = dict(os.environ)
    os.environ |= {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench"}
    try:
        yield
    finally:
        os.environ.clear()
        os.environ |= before


@asynccontextmanager
async def bare_cycle(dsn: str) -> AsyncIterator[Cycle]:
    connection = await asyncpg.connect(dsn, server_settings={"synchronous_commit": "off"})

    async def cycle(name: str, batch: int) -> int:
        delays = [timedelta()] * batch
        await connection.fetch("SELECT pgqueue.publish($1, $2, $3)", name, [BODY] * batch, delays)
        sql = "SELECT * FROM pgqueue.receive($1, $2, $3, 5, 0, $4)"
        rows = await connection.fetch(sql, name, batch, HOLD, FRONT)
        return len(await connection.fetch("SELECT pgqueue.ack($1, $2)", name, [row["receipt"] for row in rows]))

    try:
        yield cycle
    finally:
        await connection.close()


async def wake_ups(dsn: str, rounds: int) -> tuple[dict[str, float], dict[str, float]]:
    """From the call of publish to the return of a receive that waited for it; each side has its own connections."""
    waiter, publisher = PgQueue(dsn), PgQueue(dsn)
    lazy = {"synchronous_commit": "off"}
    listener, sender = [await asyncpg.connect(dsn, server_settings=lazy) for _ in range(2)]
    heard = asyncio.Event()
    await listener.add_listener("pgqueue", lambda *_: heard.set())

    async def bare_wait() -> float:
        sql = "SELECT * FROM pgqueue.receive($1, 1, $2, 5, 0, $3)"
        heard.clear()
        while not (rows := await listener.fetch(sql, "bare-wake", HOLD, FRONT)):
            await heard.wait()  # a notification of the other queue may come late, and mean nothing here
            heard.clear()
        woke = time.perf_counter()
        await listener.fetch("SELECT pgqueue.ack($1, $2)", "bare-wake", [row["receipt"] for row in rows])
        return woke

    async def wait() -> float:
        (got,) = await waiter.receive("wake", max_messages=1, visibility=HOLD, wait=timedelta(minutes=1))
        woke = time.perf_counter()
        await waiter.ack("wake", [got.receipt])
        return woke

    try:
        ours, bare = [], []
        for _ in range(rounds):
            publish = publisher.publish("wake", [Outgoing(BODY)])
            ours.append(await woken(wait(), publish))
            sql = "SELECT pgqueue.publish($1, $2, $3)"
            bare.append(await woken(bare_wait(), sender.fetch(sql, "bare-wake", [BODY], [timedelta()])))
    finally:
        await asyncio.gather(waiter.close(), publisher.close(), listener.close(), sender.close())
    return percentiles(ours[5:]), percentiles(bare[5:])


async def woken(waiting: Coroutine[Any, Any, float], publishing: Awaitable[Any]) -> float:
    """Milliseconds from the start of the one to the end of the other."""
    task = asyncio.create_task(waiting)
    await asyncio.sleep(0.02)  # it has looked by now, and waits
    start = time.perf_counter()
    await publishing
    woke = await task
    assert woke > start, "it was woken by something else"
    return 1000 * (woke - start)


def percentiles(samples: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(samples, n=20)
    return {"p50": round(cuts[9], 2), "p95": round(cuts[18], 2)}


async def flatness(dsn: str, size: int, *, old_snapshot: bool) -> float:
    """Speed of a queue through which many messages went, as a share of a new one's in the same moments: 1 is flat."""
    backup = await asyncpg.connect(dsn, server_settings={"idle_in_transaction_session_timeout": "0"})
    if old_snapshot:
        await backup.transaction(isolation="repeatable_read").start()
        await backup.fetch("SELECT 1 FROM pg_class LIMIT 1")
    used = f"used-{old_snapshot}"
    async with adapter_cycle(dsn) as cycle:
        await seconds(cycle, used, size)
        shares = [await seconds(cycle, f"new-{turn}", 30) / await seconds(cycle, used, 30) for turn in range(4 * TURNS)]
    backup.terminate()
    return round(statistics.median(shares), 2)


async def seconds(cycle: Cycle, name: str, times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        await cycle(name, 10)
    return time.perf_counter() - start


def pgbench(postgres: RunningServer, size: int) -> float:
    """Messages a second of the three calls with one message, by four clients."""
    script = postgres.cluster.directory.parent / "cycle.sql"
    script.write_text(PGBENCH_CYCLE)
    program = str(binaries() / "pgbench")
    argv = [program, "-n", "-M", "prepared", "-c", "4", "-j", "1", "-t", str(size // 4), "-f", str(script), "queue"]
    environment = {
        "PGHOST": str(postgres.cluster.socket_dir),
        "PGPORT": str(postgres.cluster.port),
        "PGUSER": SUPERUSER,
        "PGPASSWORD": postgres.password,
        "PGOPTIONS": "-c synchronous_commit=off",
    }
    output = subprocess.run(argv, capture_output=True, text=True, check=True, env=environment).stdout
    rate = float(next(line for line in output.splitlines() if line.startswith("tps = ")).split()[2])
    print(f"pgbench, batch 1, 4 clients: {rate:.0f} messages/s")
    return rate


@contextmanager
def server() -> Iterator[RunningServer]:
    folder = Path(tempfile.mkdtemp(prefix="trace-bench-"))
    folder.chmod(0o711)  # the server may run as another user
    with socket.create_server(("127.0.0.1", 0)) as api:
        port = api.getsockname()[1]
    try:
        with running(Cluster("bench", folder / "data", folder / "s", port)) as postgres:
            yield postgres
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
