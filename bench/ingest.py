"""A block range into Parquet on Spark: `python -m bench.ingest [--size N]`.

Blocks a second of what `cryo_ingest` does (fetch, prove, write, inside Spark's Python workers) against a dev chain that
has made its blocks already; beside it, in turns, a bare asyncio client with pyarrow that asks the same server for the
same and writes the same tables, without checking anything. It keeps its session, and fetches a chunk while a thread
writes the one before. `share` is the one median rate by the other; where others
use the machine too it says little, because ours needs both cores and the bare client one: then compare `cpu_seconds`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from bench.cpu import below
from bench.fetch import bare_tables, loop, session_of
from bench.report import report
from tests.support.chain.devchain import Devchain, running
from tracelake.adapters.objects_disk import DiskObjects
from tracelake.data.files.parquet_writer import COMPRESSION, OutputFolder, write_ranges
from tracelake.domain.access.object_names import Folder
from tracelake.domain.ranges import inclusive, split
from tracelake.operators.cryo_ingest import fetch
from tracelake.operators.helpers.chain_tables import ALL
from tracelake.spark.configuration import SparkOptions
from tracelake.spark.java import find_java
from tracelake.spark.session import start_session, stop_session, warm

TURNS: Final = 5
CHUNK: Final = 1000
KINDS: Final = ("proved", "sampled", "bare")
Turn = dict[str, float]
"""Blocks a second, and seconds of processor time by part."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=10_000, help="blocks")
    size = parser.parse_args().size
    load = round(os.getloadavg()[0], 2)
    turns: dict[str, list[Turn]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as name, running(blocks=size) as devchain:
        folder = Path(name)
        spark = start_session(SparkOptions(folder / "spark"), find_java(os.environ, folder / "cache"), os.environ)
        try:
            warm(spark)
            rows = bare(devchain, size, folder)[1]  # every spelling is made
            ours(spark, devchain, size, folder / "first", 1.0)  # and every module imported, as in a worker that runs
            for turn in range(TURNS):
                for kind in KINDS:
                    turns[kind].append(_timed(kind, spark, devchain, size, folder / f"{kind}{turn}"))
        finally:
            stop_session(spark)
    rates = {kind: [round(turn["rate"]) for turn in group] for kind, group in turns.items()}
    middle = {kind: round(statistics.median(group)) for kind, group in rates.items()}
    report(
        "ingest",
        middle["proved"],
        "blocks/s",
        share=round(middle["proved"] / middle["bare"], 2),
        share_sampled=round(middle["sampled"] / middle["bare"], 2),
        share_is="median rate, all proved, by median rate of the bare client",
        share_by_turn=[round(item / other, 2) for item, other in zip(rates["proved"], rates["bare"], strict=True)],
        rows_per_second=round(middle["proved"] * rows / size),
        rates=middle,
        rates_by_turn=rates,
        cpu_seconds={kind: _middle_of_each(group) for kind, group in turns.items()},
        settings={"size": size, "chunk": CHUNK, "turns": TURNS, "load_at_start": load},
    )


def _timed(kind: str, spark: Any, devchain: Devchain, size: int, folder: Path) -> Turn:
    folder.mkdir()
    before = _seconds(devchain)
    if kind == "bare":
        rate = bare(devchain, size, folder)[0]
    else:
        rate = ours(spark, devchain, size, folder, 1.0 if kind == "proved" else 0.1)
    after = _seconds(devchain)
    return {"rate": rate} | {part: after[part] - before[part] for part in after}


def _seconds(devchain: Devchain) -> dict[str, float]:
    """What the dev chain, Java, Spark's Python workers and this process have used, whoever else is here."""
    spent = {"dev chain": 0.0, "java": 0.0, "python workers": 0.0, "this process": time.process_time()}
    for pid, (program, seconds) in below(os.getpid()).items():
        part = "dev chain" if pid == devchain.process.pid else "java" if program == "java" else "python workers"
        spent[part] += seconds
    return spent


def _middle_of_each(turns: list[Turn]) -> dict[str, float]:
    parts = [part for part in turns[0] if part != "rate"]
    found = {part: round(statistics.median(turn[part] for turn in turns), 2) for part in parts}
    return found | {"all": round(statistics.median(sum(turn[part] for part in parts) for turn in turns), 2)}


def ours(spark: Any, devchain: Devchain, size: int, folder: Path, verify_roots: float) -> float:
    place = OutputFolder(DiskObjects(folder), Folder.parse("s3://bench/ingest/"))
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
    assert sum(item.file.rows for table, item in written if table == "blocks") == size
    return size / seconds


def bare(devchain: Devchain, size: int, folder: Path) -> tuple[float, int]:
    """Blocks a second, and rows in all."""
    began = time.perf_counter()
    rows = loop(_overlapped(devchain, size, folder))
    return size / (time.perf_counter() - began), rows


async def _overlapped(devchain: Devchain, size: int, folder: Path) -> int:
    rows, writing = 0, asyncio.create_task(asyncio.sleep(0, 0))
    async with session_of() as session:
        for part in split(inclusive(1, size), CHUNK):
            tables = await bare_tables(devchain, *part.edges, session)
            rows += await writing
            writing = asyncio.create_task(asyncio.to_thread(_write, tables, folder, part.start))
        return rows + await writing


def _write(tables: dict[str, pa.Table], folder: Path, start: int) -> int:
    for name, table in tables.items():
        pq.write_table(table, folder / f"{name}_{start}.parquet", compression=COMPRESSION)
    return sum(table.num_rows for table in tables.values())


if __name__ == "__main__":
    main()
