"""Upserting a DataFrame: `python -m bench.upsert [--size ROWS]`.

Half of the rows are new, half are there already. Beside it, in turns: the same rows by one COPY into an unlogged table
and one INSERT ... ON CONFLICT, as one would write it by hand.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg

from bench.report import report
from tests.support.postgres import running
from trace_platform.lite.ports import free_port
from trace_platform.lite.postgres import Cluster
from trace_platform.spark.configuration import SparkOptions
from trace_platform.spark.java import find_java
from trace_platform.spark.postgres_writer import upsert
from trace_platform.spark.session import start_session, stop_session, warm
from trace_platform.store.migrate import migrate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TABLE: Final = (
    "CREATE TABLE hot.target (k bigint, owner text, amount numeric(38,0), seen bigint, PRIMARY KEY (k, owner))"
)
TURNS: Final = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=200_000, help="rows in a batch")
    size = parser.parse_args().size
    load = round(os.getloadavg()[0], 2)
    with tempfile.TemporaryDirectory(prefix="trace-bench-") as folder:
        Path(folder).chmod(0o711)
        cluster = Cluster("bench", Path(folder) / "data", Path(folder) / "s", free_port())
        with running(cluster) as server:
            dsn = server.create_database("data")
            migrate(dsn, "data")
            options = SparkOptions(local_dir=Path(folder) / "spark")
            spark = start_session(options, find_java(os.environ, Path(folder) / "cache"), os.environ)
            try:
                ours, bare = measure(spark, dsn, size)
            finally:
                stop_session(spark)
    rate = size / statistics.median(ours)
    share = round(statistics.median(bare) / statistics.median(ours), 2)
    report("upsert", rate, "rows/s", share=share, settings={"size": size, "turns": TURNS, "load_at_start": load})


def measure(spark: SparkSession, dsn: str, size: int) -> tuple[list[float], list[float]]:
    warm(spark)
    rows = frame(spark, size).cache()
    text = "".join(f"{k},{owner},{amount},{seen}\n" for k, owner, amount, seen in rows.collect()).encode()
    ours, bare = [], []
    with psycopg.connect(dsn, autocommit=True) as connection:
        for _ in range(TURNS):
            prepare(connection, size)
            ours.append(timed(lambda: upsert(connection, dsn, rows, "hot.target", ["k", "owner"])))
            prepare(connection, size)
            bare.append(timed(lambda: by_hand(connection, text)))
    return ours, bare


def frame(spark: SparkSession, size: int) -> DataFrame:
    """In no order, as they come."""
    columns = ("id * 7919 % 1000000007 AS k", "concat('0x', md5(string(id))) AS owner")
    return spark.range(size).selectExpr(*columns, "CAST(id * 1000000007 AS decimal(38,0)) AS amount", "id AS seen")


def prepare(connection: psycopg.Connection[Any], size: int) -> None:
    """Every second row is there."""
    connection.execute("DROP TABLE IF EXISTS hot.target")
    connection.execute(TABLE.encode())
    connection.execute(
        "INSERT INTO hot.target SELECT i * 7919 %% 1000000007, '0x' || md5(i::text), 0, 0"
        " FROM generate_series(0::bigint, %s, 2) AS i",
        (size - 1,),
    )
    connection.execute("VACUUM ANALYZE hot.target")
    connection.execute("CHECKPOINT")


def by_hand(connection: psycopg.Connection[Any], text: bytes) -> None:
    with connection.transaction(), connection.cursor() as cursor:
        cursor.execute("CREATE UNLOGGED TABLE staging.by_hand (LIKE hot.target)")
        with cursor.copy("COPY staging.by_hand FROM STDIN (FORMAT csv)") as copy:
            copy.write(text)
        cursor.execute(
            "INSERT INTO hot.target SELECT * FROM staging.by_hand ORDER BY k, owner ON CONFLICT (k, owner)"
            " DO UPDATE SET amount = EXCLUDED.amount, seen = EXCLUDED.seen"
        )
        cursor.execute("DROP TABLE staging.by_hand")


def timed(call: Any) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
