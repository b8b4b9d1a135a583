"""Writing blocks into hot tables: `python -m bench.hot [--size N]`.

One transaction for 1, 10, 100 and 500 blocks of 50 transactions and 80 logs in three tables, as a follower writes them
(each time in place of the same blocks): milliseconds, and rows a second beside a bare COPY of the same text.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import numpy as np
import psycopg
import pyarrow as pa

from bench.report import report
from tests.support.postgres import running
from tracelake.data.hot.tables import HotTable, ensure
from tracelake.data.hot.writer import BlockMark, rewrite
from tracelake.data.postgres.copy_rows import as_csv
from tracelake.lite.network_ports import free_port
from tracelake.lite.postgres import Cluster
from tracelake.store.migrate import migrate

PER_BLOCK: Final = {"blocks": 1, "transactions": 50, "logs": 80}
BATCHES: Final = (1, 10, 100, 500)
SCHEMA: Final = pa.schema(
    [
        ("block_number", pa.int64()),
        ("position", pa.int64()),
        *((name, pa.binary()) for name in ("hash", "address", "topic0", "topic1", "topic2", "data")),
        ("value", pa.string()),
        ("ok", pa.bool_()),
        ("moment", pa.timestamp("us", "UTC")),
    ]
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=50, help="transactions of one block; larger ones in proportion")
    size = parser.parse_args().size
    with tempfile.TemporaryDirectory(prefix="trace-bench-") as folder:
        Path(folder).chmod(0o711)
        cluster = Cluster("bench", Path(folder) / "data", Path(folder) / "s", free_port())
        with running(cluster) as server:
            dsn = server.create_database("data")
            migrate(dsn, "data")
            with psycopg.connect(dsn, autocommit=True) as connection:
                results = {batch: measure(connection, batch, max(3, size // batch)) for batch in BATCHES}
    report(
        "hot",
        results[1]["p50_ms"],
        "ms a block (p50, one block a transaction)",
        batches={str(batch): result for batch, result in results.items()},
        settings={"size": size, "rows_per_block": PER_BLOCK},
    )


def measure(connection: psycopg.Connection[Any], batch: int, turns: int) -> dict[str, float]:
    tables = {name: HotTable(uuid4(), uuid4(), uuid4(), SCHEMA, ("block_number", "position")) for name in PER_BLOCK}
    rows = {tables[name]: rows_of(batch, count) for name, count in PER_BLOCK.items()}
    marks = [BlockMark(n, b"%032d" % n, b"%032d" % (n - 1)) for n in range(batch)]
    for table in rows:
        ensure(connection, table)
    ours = timed(lambda: rewrite(connection, rows, marks, replace_from=0), turns)
    bare = timed(lambda: bare_copy(connection, rows), turns)
    count = batch * sum(PER_BLOCK.values())
    return {
        "p50_ms": round(statistics.median(ours) * 1e3, 2),
        "p95_ms": round(sorted(ours)[int(0.95 * len(ours))] * 1e3, 2),
        "rows_per_s": round(count / statistics.median(ours)),
        "share": round(statistics.median(bare) / statistics.median(ours), 2),
    }


def bare_copy(connection: psycopg.Connection[Any], rows: dict[HotTable, pa.Table]) -> None:
    """The least that anybody could do: the rows replaced, in one transaction."""
    with connection.transaction(), connection.cursor() as cursor:
        for table, part in rows.items():
            cursor.execute(f"DELETE FROM hot.{table.name}".encode())  # noqa: S608 - our own name
            with cursor.copy(f"COPY hot.{table.name} FROM STDIN (FORMAT csv)".encode()) as copy:
                copy.write(as_csv(part))


def timed(call: Callable[[], Any], turns: int) -> list[float]:
    taken = []
    for _ in range(turns + 1):
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return taken[1:]


def rows_of(blocks: int, per_block: int) -> pa.Table:
    rng, count = np.random.default_rng(1), blocks * per_block
    columns: list[Any] = [np.repeat(np.arange(blocks), per_block), np.tile(np.arange(per_block), blocks)]
    columns += [pa.array([rng.bytes(width) for _ in range(count)], pa.binary()) for width in (32, 20, 32, 32, 32, 64)]
    columns += [["123456789012345678901234567890"] * count, [True] * count]
    columns.append(pa.array([1_700_000_000_000_000] * count, pa.timestamp("us", "UTC")))
    return pa.table(columns, names=SCHEMA.names).cast(SCHEMA)


if __name__ == "__main__":
    main()
