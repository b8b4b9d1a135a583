"""A block range into Parquet on Spark: `python -m bench.ingest [--size N]`.

Blocks a second of what `cryo_ingest` does (fetch, prove, write, inside Spark's Python workers) against a dev chain that
has made its blocks already; beside it, in turns, a bare asyncio client with pyarrow that asks the same server for the
same and writes the same tables, without checking anything.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq

from bench.fetch import bare_tables, loop
from bench.report import report
from trace_platform.adapters.objects_disk import DiskObjects
from trace_platform.chain.devchain.handle import Devchain, running
from trace_platform.domain.objects import Folder
from trace_platform.domain.ranges import inclusive, split
from trace_platform.operators.chain_tables import ALL
from trace_platform.operators.cryo_ingest import fetch
from trace_platform.spark.configuration import SparkOptions
from trace_platform.spark.java import find_java
from trace_platform.spark.parquet_writer import COMPRESSION, Place, write_ranges
from trace_platform.spark.session import start_session, stop_session, warm

TURNS: Final = 3
CHUNK: Final = 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=10_000, help="blocks")
    size = parser.parse_args().size
    load = round(os.getloadavg()[0], 2)
    rates: dict[str, list[float]] = {"proved": [], "sampled": [], "bare": []}
    with tempfile.TemporaryDirectory() as name, running(blocks=size) as devchain:
        folder = Path(name)
        spark = start_session(SparkOptions(folder / "spark"), find_java(os.environ, folder / "cache"), os.environ)
        try:
            warm(spark)
            rows = bare(devchain, size, folder)[1]  # every spelling is made
            for turn in range(TURNS):
                rates["proved"].append(ours(spark, devchain, size, folder / f"proved{turn}", 1.0))
                rates["sampled"].append(ours(spark, devchain, size, folder / f"sampled{turn}", 0.1))
                rates["bare"].append(bare(devchain, size, folder)[0])
        finally:
            stop_session(spark)
    middle = {name: round(statistics.median(some)) for name, some in rates.items()}
    shares = {
        f"share_{name}": round(statistics.median(o / b for o, b in zip(rates[name], rates["bare"], strict=True)), 2)
        for name in ("proved", "sampled")
    }
    report(
        "ingest",
        middle["proved"],
        "blocks/s",
        share=shares["share_proved"],
        **shares,
        rows_per_second=round(middle["proved"] * rows / size),
        rates=middle,
        settings={"size": size, "chunk": CHUNK, "turns": TURNS, "load_at_start": load},
    )


def ours(spark: Any, devchain: Devchain, size: int, folder: Path, verify_roots: float) -> float:
    place = Place(DiskObjects(folder), Folder.parse("s3://bench/ingest/"))
    pool = devchain.pool(verify_roots=verify_roots)
    began = time.perf_counter()
    written = write_ranges(
        spark,
        partial(fetch, pool, ALL),
        list(split(inclusive(1, size), CHUNK)),
        dict.fromkeys(ALL, place),
        {table: table for table in ALL},
    )
    seconds = time.perf_counter() - began
    assert sum(one.file.rows for table, one in written if table == "blocks") == size
    return size / seconds


def bare(devchain: Devchain, size: int, folder: Path) -> tuple[float, int]:
    """Blocks a second, and rows in all."""
    began = time.perf_counter()
    rows = 0
    for part in split(inclusive(1, size), CHUNK):
        for name, table in loop(bare_tables(devchain, *part.edges)).items():
            pq.write_table(table, folder / f"{name}_{part.start}.parquet", compression=COMPRESSION)
            rows += table.num_rows
    return size / (time.perf_counter() - began), rows


if __name__ == "__main__":
    main()
