"""What the demo made, read from its files without Trace's own readers, and compared with the chain it came from.

What must be there follows from the chain and from what was asked for, never from the datasets themselves: a piece that
is missing, or there twice, is told as such.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tracelake.chain.abi import ERC20_TRANSFER
from tracelake.chain.decode_logs import decode_logs
from tracelake.chain.schemas import UNIQUE_KEYS
from tracelake.domain.object_names import Folder
from tracelake.domain.ranges import Range, holes, inclusive, overlapping, subtract
from tracelake_demo.system import Running
from tracelake_devchain.chain import Chain
from tracelake_devchain.expected_rows import truth_table

SECONDS_A_DAY = 86_400
CHECKS = 3
"""So many does `blocks_checked` make of each piece."""


@dataclass(frozen=True)
class Story:
    """What was asked for: with the chain it says what must be there."""

    past: int
    """So many blocks, from 0 on, were backfilled; the follower begins where they end."""
    piece: int
    """Blocks that one task of the backfill takes."""
    size: int
    """Blocks of a range that is compacted once all of it is final."""

    def backfilled(self) -> Range:
        return inclusive(0, self.past - 1)

    def compacted(self, chain: Chain) -> int:
        """How many ranges are final as a whole."""
        return max(chain.finalized + 1 - self.past, 0) // self.size

    def recent(self, chain: Chain) -> Range:
        return inclusive(self.past, self.past + self.compacted(chain) * self.size - 1)


@dataclass(frozen=True)
class Seen:
    name: str
    rows: int
    blocks: str
    commits: int
    wrong: str
    """Nothing, where all is as it must be."""
    how: str = ""

    @property
    def verdict(self) -> str:
        return f"NO: {self.wrong}" if self.wrong else f"yes, {self.how}"


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
        """Through the Query service, which joins the hot table and the files at their seam."""
        truth = truth_table(self.chain, "blocks", self.story.past, self.chain.head)
        found = self.system.table(f"SELECT {', '.join(truth.column_names)} FROM hot_blocks")  # noqa: S608 - our names
        wrong = _difference(found, truth, UNIQUE_KEYS["blocks"])
        return self._seen("hot_blocks", found.num_rows, inclusive(self.story.past, self.chain.head), wrong)

    def transfers(self) -> Seen:
        whole = inclusive(0, self.story.recent(self.chain).edges[1])
        return self._kept("transfers", self._true_transfers(whole), UNIQUE_KEYS["logs"], whole)

    def daily(self) -> Seen:
        """Counted once more, by other means, from the chain's own transfers."""
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
        """Every piece of the backfill was checked, once, and held."""
        name, whole = "blocks_checked", self.story.backfilled()
        spans, report = self._spans(name), self._rows(name)
        wrong = _tiling(spans, whole)
        if not wrong and report is not None:
            held = report["passed"].to_pylist().count(True)
            expected = CHECKS * (len(whole) // self.story.piece)
            if (held, report.num_rows) != (expected, expected):
                wrong = f"{report.num_rows} checks were made and {held} held, where {expected} must"
        return self._seen(name, report.num_rows if report else 0, whole, wrong, "every check held")

    def critical_days(self) -> Seen:
        """Counted once more from the alerts, which were held against the chain before."""
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
        wrong = _tiling(self._spans(name), whole)
        if not wrong:
            wrong = _difference(truth.slice(0, 0) if found is None else found, truth, keys)
        return self._seen(name, rows, whole, wrong)

    def _summed(self, name: str, found: list[Any], truth: list[Any]) -> Seen:
        wrong = "it is empty" if not found else ""
        if not wrong and Counter(found) != Counter(truth):
            missing, more = Counter(truth) - Counter(found), Counter(found) - Counter(truth)
            wrong = f"{missing.total()} of {len(truth)} rows are missing, {more.total()} are not as they should be"
        return self._seen(name, len(found), None, wrong, "summed up again")

    def _seen(self, name: str, rows: int, whole: Range | None, wrong: str, how: str = "") -> Seen:
        commits = self.system.get(f"/v1/datasets/{name}").json()["last_commit"] or 0
        return Seen(name, rows, _said(whole) if whole else "all", commits, wrong, how or "row for row")

    def _partitions(self, name: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.system.get(f"/v1/datasets/{name}/files").json()["partitions"]
        return found

    def _spans(self, name: str) -> list[Range]:
        return [inclusive(part["start"], part["end"]) for part in self._partitions(name)]

    def _rows(self, name: str) -> pa.Table | None:
        """Straight from the files that count; None if there are none."""
        tables = []
        for part in self._partitions(name):
            for file in part["files"]:
                place = Folder.parse(part["location"]).object(file["name"])
                tables.append(pq.read_table(self.system.home.root / "objects" / place.bucket / place.key))
        return pa.concat_tables(tables) if tables else None

    def _tuples(self, name: str, *columns: str) -> list[Any]:
        found = self._rows(name)
        return [] if found is None else [tuple(row[column] for column in columns) for row in found.to_pylist()]


def _tiling(spans: Sequence[Range], whole: Range) -> str:
    """What keeps these partitions from holding every block of the whole once, and no other."""
    if not spans:
        return f"it is empty; blocks {_said(whole)} are missing"
    wrong = [f"blocks {_said(hole)} are missing" for hole in holes(spans, whole)]
    wrong += [f"blocks {_said(item)} and {_said(other)} overlap" for item, other in overlapping(spans)]
    wrong += [f"blocks {_said(item)} do not belong there" for item in subtract(spans, [whole])]
    return "; ".join(wrong)


def _difference(found: pa.Table, truth: pa.Table, keys: Sequence[str]) -> str:
    if absent := [name for name in truth.column_names if name not in found.column_names]:
        return f"there is no column {', '.join(absent)}"
    ours = found.select(truth.column_names).cast(truth.schema)
    here, there = (Counter(zip(*(item[key].to_pylist() for key in keys), strict=True)) for item in (ours, truth))
    wrong = [
        f"{len(group)} {words}, such as {dict(zip(keys, min(group), strict=True))}"
        for words, group in (
            ("rows are missing", there.keys() - here.keys()),
            ("rows are not of the chain", here.keys() - there.keys()),
            ("rows are there more than once", {key for key, times in here.items() if times > 1}),
        )
        if group
    ]
    order = [(key, "ascending") for key in keys]
    if not wrong and not ours.sort_by(order).equals(truth.sort_by(order)):
        wrong = ["rows hold other values than the chain"]
    return "; ".join(wrong)


def _said(span: Range) -> str:
    start, end = span.edges
    return f"{start:,} to {end:,}"


def _date(day: int) -> Any:
    return pc.cast(pa.scalar(day, pa.int32()), pa.date32()).as_py()
