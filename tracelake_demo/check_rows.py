"""Reads the demo's datasets without Trace's own readers, and compares them with the chain.

The expected rows follow from the chain and the request, never from the datasets: missing and duplicate pieces are
reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tracelake.chain.abi.decode_logs import decode_logs
from tracelake.chain.abi.events import ERC20_TRANSFER
from tracelake.chain.schemas import UNIQUE_KEYS
from tracelake.domain.access.object_names import Folder
from tracelake.domain.ranges import Range, holes, inclusive, overlapping, subtract
from tracelake_demo.system import Running
from tracelake_devchain.chain import Chain
from tracelake_devchain.expected_rows import truth_table

SECONDS_A_DAY = 86_400
CHECKS = 3
"""Checks that `blocks_checked` makes per piece."""


@dataclass(frozen=True)
class Story:
    """The request; with the chain it determines the expected rows."""

    past: int
    """Number of backfilled blocks, from 0 on; the follower begins after them."""
    piece: int
    """Blocks per task of the backfill."""
    size: int
    """Blocks per range that is compacted once it is final."""

    def backfilled(self) -> Range:
        return inclusive(0, self.past - 1)

    def compacted(self, chain: Chain) -> int:
        """Number of ranges that are final."""
        return max(chain.finalized + 1 - self.past, 0) // self.size

    def recent(self, chain: Chain) -> Range:
        return inclusive(self.past, self.past + self.compacted(chain) * self.size - 1)


@dataclass(frozen=True)
class Seen:
    name: str
    rows: int
    blocks: str
    commits: int
    error: str
    """Empty if everything is as expected."""
    how: str = ""

    @property
    def verdict(self) -> str:
        return f"NO: {self.error}" if self.error else f"yes, {self.how}"


def check_datasets(system: Running, chain: Chain, story: Story) -> Iterator[Seen]:
    look = _Look(system, chain, story)
    for era, whole in (("past", story.backfilled()), ("recent", story.recent(chain))):
        for table in ("blocks", "transactions", "logs"):
            yield look.chain_table(f"{era}_{table}", table, whole)
    yield look.hot()
    yield look.transfers()
    yield look.daily()
    yield look.checked()
    yield look.critical_days()


@dataclass(frozen=True)
class _Look:
    system: Running
    chain: Chain
    story: Story

    def chain_table(self, name: str, table: str, whole: Range) -> Seen:
        return self._kept(name, truth_table(self.chain, table, *whole.edges), UNIQUE_KEYS[table], whole)

    def hot(self) -> Seen:
        """Through the query service, which combines the hot table and the files."""
        truth = truth_table(self.chain, "blocks", self.story.past, self.chain.head)
        found = self.system.table(f"SELECT {', '.join(truth.column_names)} FROM hot_blocks")  # noqa: S608 - our names
        error = _difference(found, truth, UNIQUE_KEYS["blocks"])
        return self._seen("hot_blocks", found.num_rows, inclusive(self.story.past, self.chain.head), error)

    def transfers(self) -> Seen:
        whole = inclusive(0, self.story.recent(self.chain).edges[1])
        return self._kept("transfers", self._true_transfers(whole), UNIQUE_KEYS["logs"], whole)

    def daily(self) -> Seen:
        """Computed again, in another way, from the chain's transfers."""
        transfers = self._true_transfers(inclusive(0, self.story.recent(self.chain).edges[1]))
        days = pc.divide(transfers["timestamp"], SECONDS_A_DAY)
        counted = (
            pa.table({"day": days, "token": transfers["address"], "amount": transfers["value_decimal"]})
            .group_by(["day", "token"])
            .aggregate([("amount", "count"), ("amount", "sum")])
        )
        truth = [
            (_date(item["day"]), item["token"], item["amount_count"], item["amount_sum"])
            for item in counted.to_pylist()
        ]
        found = self._tuples("daily_volume", "day", "token", "transfers", "amount")
        return self._summed("daily_volume", found, truth)

    def checked(self) -> Seen:
        """Every piece of the backfill was checked once and passed."""
        name, whole = "blocks_checked", self.story.backfilled()
        spans, report = self._spans(name), self._rows(name)
        error = _tiling(spans, whole)
        if not error and report is not None:
            held = report["passed"].to_pylist().count(True)
            expected = CHECKS * (len(whole) // self.story.piece)
            if (held, report.num_rows) != (expected, expected):
                error = f"{report.num_rows} checks were made and {held} passed, of {expected}"
        return self._seen(name, report.num_rows if report else 0, whole, error, "every check held")

    def critical_days(self) -> Seen:
        """Computed again from the alerts, which were compared with the chain before."""
        sql = "SELECT date(event_time) AS day, chain_id, block_number FROM alert_events WHERE severity = 'critical'"
        days: dict[Any, list[int]] = {}
        for row in self.system.table(sql).to_pylist():
            days.setdefault((row["day"], row["chain_id"]), []).append(row["block_number"])
        truth = [(*day, len(blocks), max(blocks)) for day, blocks in days.items()]
        found = self._tuples("critical_days", "day", "chain_id", "alerts", "last_block")
        return self._summed("critical_days", found, truth)

    def _true_transfers(self, whole: Range) -> pa.Table:
        return decode_logs(truth_table(self.chain, "logs", *whole.edges), ERC20_TRANSFER).table

    def _kept(self, name: str, truth: pa.Table, keys: Sequence[str], whole: Range) -> Seen:
        found = self._rows(name)
        rows = 0 if found is None else found.num_rows
        error = _tiling(self._spans(name), whole)
        if not error:
            error = _difference(truth.slice(0, 0) if found is None else found, truth, keys)
        return self._seen(name, rows, whole, error)

    def _summed(self, name: str, found: list[Any], truth: list[Any]) -> Seen:
        error = "it is empty" if not found else ""
        if not error and Counter(found) != Counter(truth):
            missing, more = Counter(truth) - Counter(found), Counter(found) - Counter(truth)
            error = f"{missing.total()} of {len(truth)} rows are missing, {more.total()} are wrong"
        return self._seen(name, len(found), None, error, "summed up again")

    def _seen(self, name: str, rows: int, whole: Range | None, error: str, how: str = "") -> Seen:
        commits = self.system.get(f"/v1/datasets/{name}").json()["last_commit"] or 0
        return Seen(name, rows, _text(whole) if whole else "all", commits, error, how or "row for row")

    def _partitions(self, name: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.system.get(f"/v1/datasets/{name}/files").json()["partitions"]
        return found

    def _spans(self, name: str) -> list[Range]:
        return [inclusive(part["start"], part["end"]) for part in self._partitions(name)]

    def _rows(self, name: str) -> pa.Table | None:
        """Reads the current files; None if there are none."""
        tables = []
        for part in self._partitions(name):
            for file in part["files"]:
                place = Folder.parse(part["location"]).object(file["name"])
                tables.append(pq.read_table(self.system.stored(place)))
        return pa.concat_tables(tables) if tables else None

    def _tuples(self, name: str, *columns: str) -> list[Any]:
        found = self._rows(name)
        return [] if found is None else [tuple(row[column] for column in columns) for row in found.to_pylist()]


def _tiling(spans: Sequence[Range], whole: Range) -> str:
    """Why these partitions do not cover every block exactly once; None if they do."""
    if not spans:
        return f"it is empty; blocks {_text(whole)} are missing"
    error = [f"blocks {_text(hole)} are missing" for hole in holes(spans, whole)]
    error += [f"blocks {_text(item)} and {_text(other)} overlap" for item, other in overlapping(spans)]
    error += [f"blocks {_text(item)} do not belong there" for item in subtract(spans, [whole])]
    return "; ".join(error)


def _difference(found: pa.Table, truth: pa.Table, keys: Sequence[str]) -> str:
    if absent := [name for name in truth.column_names if name not in found.column_names]:
        return f"there is no column {', '.join(absent)}"
    ours = found.select(truth.column_names).cast(truth.schema)
    here, there = (Counter(zip(*(item[key].to_pylist() for key in keys), strict=True)) for item in (ours, truth))
    error = [
        f"{len(group)} {words}, such as {dict(zip(keys, min(group), strict=True))}"
        for words, group in (
            ("rows are missing", there.keys() - here.keys()),
            ("rows are not of the chain", here.keys() - there.keys()),
            ("rows are duplicates", {key for key, times in here.items() if times > 1}),
        )
        if group
    ]
    order = [(key, "ascending") for key in keys]
    if not error and not ours.sort_by(order).equals(truth.sort_by(order)):
        error = ["rows have other values than the chain"]
    return "; ".join(error)


def _text(span: Range) -> str:
    start, end = span.edges
    return f"{start:,} to {end:,}"


def _date(day: int) -> Any:
    return pc.cast(pa.scalar(day, pa.int32()), pa.date32()).as_py()
