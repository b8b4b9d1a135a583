"""What the demo made, read from its files without Trace's own readers, and compared with the chain it came from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from trace_platform.chain.abi import ERC20_TRANSFER
from trace_platform.chain.decode_logs import decode_logs
from trace_platform.chain.devchain.chain import Chain
from trace_platform.chain.devchain.truth import truth_table
from trace_platform.chain.schemas import UNIQUE_KEYS
from trace_platform.domain.objects import Folder
from trace_platform.lite.demo_system import Running

SECONDS_A_DAY = 86_400


@dataclass(frozen=True)
class Seen:
    name: str
    rows: int
    blocks: str
    commits: int
    equal: bool
    how: str


def check_datasets(system: Running, chain: Chain) -> Iterator[Seen]:
    for era in ("past", "recent"):
        for table in ("blocks", "transactions", "logs"):
            yield _seen(system, chain, f"{era}_{table}", table)
    transfers = _rows(system, "transfers")
    yield _transfers(system, chain, transfers)
    yield _daily(system, transfers)


def _seen(system: Running, chain: Chain, name: str, table: str) -> Seen:
    found, spans = _rows(system, name), _spans(system, name)
    truth = pa.concat_tables([truth_table(chain, table, start, end) for start, end in spans])
    return _compared(system, name, found, truth, table)


def _transfers(system: Running, chain: Chain, found: pa.Table) -> Seen:
    logs = [truth_table(chain, "logs", start, end) for start, end in _spans(system, "transfers")]
    truth = decode_logs(pa.concat_tables(logs), ERC20_TRANSFER).table
    return _compared(system, "transfers", found, truth, "logs")


def _compared(system: Running, name: str, found: pa.Table, truth: pa.Table, table: str) -> Seen:
    keys = [(key, "ascending") for key in UNIQUE_KEYS[table]]
    ours = found.select(truth.column_names).cast(truth.schema).sort_by(keys)
    equal = ours.equals(truth.sort_by(keys))
    return _described(system, name, found.num_rows, equal=equal, how=f"yes, {truth.num_rows:,} rows" if equal else "NO")


def _daily(system: Running, transfers: pa.Table) -> Seen:
    """Counted once more, by other means, from the transfers that were just found to be right."""
    found = _rows(system, "daily_volume")
    days = pc.divide(transfers["timestamp"], SECONDS_A_DAY)
    truth = (
        pa.table({"day": days, "token": transfers["address"], "amount": transfers["value_decimal"]})
        .group_by(["day", "token"])
        .aggregate([("amount", "count"), ("amount", "sum")])
    )
    told = {(row["day"], row["token"]): (row["transfers"], row["amount"]) for row in found.to_pylist()}
    counted = {(_date(row["day"]), row["token"]): (row["amount_count"], row["amount_sum"]) for row in truth.to_pylist()}
    equal = told == counted
    return _described(
        system, "daily_volume", found.num_rows, equal=equal, how="yes, summed up again" if equal else "NO"
    )


def _date(day: int) -> Any:
    return pc.cast(pa.scalar(day, pa.int32()), pa.date32()).as_py()


def _described(system: Running, name: str, rows: int, *, equal: bool, how: str) -> Seen:
    detail = system.get(f"/v1/datasets/{name}").json()
    ranges = next(one for one in detail["generations"] if one["current"])["ranges"]
    blocks = ", ".join(f"{start:,} to {end:,}" for start, end in ranges) or "all"
    return Seen(name, rows, blocks, detail["last_commit"] or 0, equal, how)


def _spans(system: Running, name: str) -> list[tuple[int, int]]:
    parts = system.get(f"/v1/datasets/{name}/files").json()["partitions"]
    return [(part["start"], part["end"]) for part in parts]


def _rows(system: Running, name: str) -> pa.Table:
    """Straight from the files that count."""
    listed = system.get(f"/v1/datasets/{name}/files").json()
    tables = []
    for part in listed["partitions"]:
        for file in part["files"]:
            place = Folder.parse(part["location"]).object(file["name"])
            tables.append(pq.read_table(system.home.root / "objects" / place.bucket / place.key))
    return pa.concat_tables(tables)
