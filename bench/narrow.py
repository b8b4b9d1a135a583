"""A query for one block of a dataset of many files: `python -m bench.narrow [--size N] [--files N]`.

The same rows are asked for twice, through the Query service: by a condition that says which files are needed, and by
one that says the same and does not (`block_number + 0 = ...`), so that all files are opened. Alternating, another block
each time. The ratio is what leaving files out saves; the first of each kind is reported apart.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
import uvloop

from bench.query import FOLDER, milliseconds, service
from bench.report import report
from tracelake.adapters.objects_disk import DiskObjects
from tracelake.wire.task.outputs import PartitionFiles

BLOCKS: Final = 10
"""Of each file."""
NARROWED: Final = "SELECT text FROM events WHERE block_number = {block}"
WHOLE: Final = "SELECT text FROM events WHERE block_number + 0 = {block}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=10, help="how often each is asked")
    parser.add_argument("--files", type=int, default=1000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="trace-bench-") as folder:
        uvloop.run(measure(Path(folder), given.size, given.files))


async def measure(home: Path, size: int, files: int) -> None:
    objects = DiskObjects(home / "objects")
    parts = await asyncio.to_thread(made, objects, files)
    async with service(home, objects, parts, (("block_number", "bigint"), ("text", "string"))) as running:
        ask = running.ask
        await ask("SELECT 1 AS warm")
        first = {name: await asked(ask, sql, 0) for name, sql in (("narrowed", NARROWED), ("whole", WHOLE))}
        narrowed, whole = [], []
        for turn in range(1, size + 1):
            block = turn * 7919 % (files * BLOCKS)
            narrowed.append(await asked(ask, NARROWED, block))
            whole.append(await asked(ask, WHOLE, block))
    report(
        "narrow",
        milliseconds(statistics.median(narrowed)),
        "ms (p50, warm, rows of one block, through the api)",
        ratio_to_all_files=round(statistics.median(whole) / statistics.median(narrowed), 2),
        whole_p50_ms=milliseconds(statistics.median(whole)),
        first_ms={name: milliseconds(seconds) for name, seconds in first.items()},
        settings={"size": size, "files": files},
    )


async def asked(ask: Callable[[str], Awaitable[None]], sql: str, block: int) -> float:
    began = time.perf_counter()
    await ask(sql.format(block=block))
    return time.perf_counter() - began


def made(objects: DiskObjects, files: int) -> list[PartitionFiles]:
    parts = []
    for number in range(files):
        start, end = number * BLOCKS, (number + 1) * BLOCKS - 1
        blocks = [block for block in range(start, end + 1) for _ in range(BLOCKS)]
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table({"block_number": blocks, "text": [f"event {block}" for block in blocks]}), sink)
        name, body = f"blocks_{start}_{end}.parquet", sink.getvalue().to_pybytes()
        objects.put(FOLDER.object(name), body)
        file = {"name": name, "rows": len(blocks), "bytes": len(body), "numbers": [start, end]}
        key = f"{start}-{end}"
        parts.append(
            PartitionFiles(partition_key=key, location=str(FOLDER), files=[file], commit=1, start=start, end=end)
        )
    return parts


if __name__ == "__main__":
    main()
