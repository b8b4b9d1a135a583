"""A Sail engine in a process of its own: `python -m tests.support.programs.sail_service FOLDER`.

It runs one query, writes a line of JSON with its result and the processes of its sandbox, and waits to be killed or for
the end of its standard input.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pyarrow as pa

from tests.support.query.sail import sail_system


async def main(folder: Path) -> None:
    async with sail_system(folder) as system:
        system.add("few", pa.table({"id": pa.array(range(5), pa.int64())}), {"id": "bigint"})
        result = await system.engine.run(system.query("SELECT max(id) AS m FROM few"))
        assert result.table is not None
        linked = [path.stat().st_nlink for path in (folder / "sail").rglob("*.parquet")]
        report = {
            "user": os.geteuid(),
            "rows": result.table.to_pylist(),
            "pids": system.pids(),
            "links": linked,
            "cgroups": [str(path) for path in system.cgroups()],
        }
        print(json.dumps(report), flush=True)  # noqa: T201 - its result
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
