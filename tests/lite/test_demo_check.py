"""How the demo checks its results: against the chain and the requested ranges, on files as Trace leaves them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tracelake.chain.abi.decode_logs import decode_logs
from tracelake.chain.abi.events import ERC20_TRANSFER
from tracelake.lite.home import Home
from tracelake_demo.check_alerts import judged, large_transfers
from tracelake_demo.check_rows import Seen, Story, check_datasets
from tracelake_demo.system import Running, nobodys_settings
from tracelake_devchain.chain import Chain
from tracelake_devchain.expected_rows import truth_table

STORY = Story(past=40, piece=20, size=10)
PAST, RECENT = [(0, 19), (20, 39)], [(40, 49), (50, 59)]
Spans = Sequence[tuple[int, int]]
DAY = datetime(2025, 3, 1, tzinfo=UTC).date()


class Made:
    """What the demo would find behind the public listener: real files, and answers to its queries."""

    def __init__(self, home: Home, chain: Chain) -> None:
        self._home, self._chain = home, chain
        self.partitions: dict[str, list[dict[str, Any]]] = {}
        self.hot = truth_table(chain, "blocks", STORY.past, chain.head)
        for table in ("blocks", "transactions", "logs"):
            self.write(f"past_{table}", PAST, partial(_truth, chain, table))
            self.write(f"recent_{table}", RECENT, partial(_truth, chain, table))
        self.write("transfers", [*PAST, *RECENT], self._transfers)
        self.write("blocks_checked", PAST, lambda _: checked(passed=True))
        self.write("daily_volume", [(0, 0)], lambda _: self._daily())
        self.write("critical_days", [(0, 0)], lambda _: critical_days(2))

    def write(self, name: str, spans: Spans, rows: Callable[[tuple[int, int]], pa.Table]) -> None:
        self.partitions[name] = []
        for nth, span in enumerate(spans):
            folder = self._home.root / "objects" / "trace-datasets" / name / str(nth)
            folder.mkdir(parents=True, exist_ok=True)
            pq.write_table(rows(span), folder / "rows.parquet")
            self.partitions[name].append(
                {
                    "start": span[0],
                    "end": span[1],
                    "location": f"s3://trace-datasets/{name}/{nth}/",
                    "files": [{"name": "rows.parquet"}],
                }
            )

    def blocks(self, name: str, spans: Spans) -> None:
        self.write(name, spans, partial(_truth, self._chain, "blocks"))

    def seen(self) -> dict[str, Seen]:
        with httpx.Client(base_url="https://trace", transport=httpx.MockTransport(self._answer)) as http:
            system = Running(self._home, {"user_token": "x"}, http)
            return {dataset.name: dataset for dataset in check_datasets(system, self._chain, STORY)}

    def _answer(self, request: httpx.Request) -> httpx.Response:
        *_, name, last = request.url.path.split("/")
        if last == "files":
            return httpx.Response(200, json={"partitions": self.partitions[name]})
        if last != "query":
            return httpx.Response(200, json={"last_commit": 3})
        alerts = pa.table({"day": [DAY, DAY], "chain_id": [1337, 1337], "block_number": [41, 44]})
        rows = self.hot if "hot_blocks" in json.loads(request.content)["sql"] else alerts
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows)
        return httpx.Response(200, content=sink.getvalue().to_pybytes())

    def _transfers(self, span: tuple[int, int]) -> pa.Table:
        return decode_logs(truth_table(self._chain, "logs", *span), ERC20_TRANSFER).table

    def _daily(self) -> pa.Table:
        all_of_them = self._transfers((0, 59))
        day = pc.cast(pc.cast(pc.divide(all_of_them["timestamp"], 86_400), pa.int32()), pa.date32())
        rows = pa.table({"day": day, "token": all_of_them["address"], "amount": all_of_them["value_decimal"]})
        summed = rows.group_by(["day", "token"]).aggregate([("amount", "count"), ("amount", "sum")])
        named = {"day": "day", "token": "token", "amount_count": "transfers", "amount_sum": "amount"}
        return summed.select(list(named)).rename_columns(list(named.values()))


def _truth(chain: Chain, table: str, span: tuple[int, int]) -> pa.Table:
    return truth_table(chain, table, *span)


def checked(*, passed: bool) -> pa.Table:
    return pa.table({"check": ["not_null", "unique", "continuous"], "passed": [True, True, passed]})


def critical_days(alerts: int) -> pa.Table:
    return pa.table({"day": [DAY], "chain_id": [1337], "alerts": [alerts], "last_block": [44]})


@pytest.fixture(scope="module")
def chain() -> Chain:
    return Chain(blocks=72, finality=12)  # so blocks up to 60 are final: two ranges of ten


@pytest.fixture
def made(tmp_path: Path, chain: Chain) -> Made:
    return Made(Home(tmp_path), chain)


def test_datasets_that_hold_every_block_once_equal_the_chain(made: Made) -> None:
    seen = made.seen()
    assert [item.verdict for item in seen.values() if item.error] == []
    assert list(seen) == [
        *("past_blocks", "past_transactions", "past_logs", "recent_blocks", "recent_transactions", "recent_logs"),
        *("hot_blocks", "transfers", "daily_volume", "blocks_checked", "critical_days"),
    ]


@pytest.mark.parametrize(
    ("spans", "output"),
    [
        ([], "it is empty; blocks 0 to 39 are missing"),
        ([(0, 19)], "blocks 20 to 39 are missing"),
        ([(0, 9), (30, 39)], "blocks 10 to 29 are missing"),
        ([(0, 39), (0, 39)], "blocks 0 to 39 and 0 to 39 overlap"),
        ([(0, 19), (10, 39)], "blocks 0 to 19 and 10 to 39 overlap"),
        ([(0, 39), (40, 49)], "blocks 40 to 49 do not belong there"),
    ],
)
def test_partitions_that_are_missing_doubled_or_too_many_are_named(made: Made, spans: Spans, output: str) -> None:
    made.blocks("past_blocks", spans)
    assert made.seen()["past_blocks"].verdict == f"NO: {output}"


def test_a_range_that_was_not_compacted_is_missed_although_nothing_in_the_dataset_says_so(made: Made) -> None:
    made.blocks("recent_blocks", RECENT[:1])
    assert made.seen()["recent_blocks"].verdict == "NO: blocks 50 to 59 are missing"


def test_rows_within_a_partition_are_missed_found_twice_and_found_false(made: Made, chain: Chain) -> None:
    made.write("past_blocks", [(0, 39)], lambda _: truth_table(chain, "blocks", 0, 36))
    assert "3 rows are missing" in made.seen()["past_blocks"].verdict
    twice = [truth_table(chain, "blocks", 0, 39), truth_table(chain, "blocks", 5, 5)]
    made.write("past_blocks", [(0, 39)], lambda _: pa.concat_tables(twice))
    assert "1 rows are duplicates" in made.seen()["past_blocks"].verdict
    other = truth_table(Chain(seed=8, blocks=40), "blocks", 0, 39)
    made.write("past_blocks", [(0, 39)], lambda _: other)
    assert made.seen()["past_blocks"].verdict == "NO: rows have other values than the chain"


def test_the_hot_table_is_compared_from_where_the_follower_began_up_to_the_tip(made: Made, chain: Chain) -> None:
    made.hot = truth_table(chain, "blocks", STORY.past, chain.head - 1)
    assert "1 rows are missing, such as {'block_number': 72}" in made.seen()["hot_blocks"].verdict


def test_a_check_that_was_missing_or_failed_is_reported(made: Made) -> None:
    made.write("blocks_checked", PAST[:1], lambda _: checked(passed=True))
    assert made.seen()["blocks_checked"].verdict == "NO: blocks 20 to 39 are missing"
    made.write("blocks_checked", PAST, lambda _: checked(passed=False))
    assert made.seen()["blocks_checked"].verdict == "NO: 6 checks were made and 4 passed, of 6"


def test_sums_are_compared_with_the_chain_and_the_alerts(made: Made) -> None:
    made.write("critical_days", [(0, 0)], lambda _: critical_days(3))
    made.write("daily_volume", [], lambda _: checked(passed=True))
    seen = made.seen()
    assert seen["critical_days"].error
    assert seen["daily_volume"].verdict == "NO: it is empty"


@pytest.fixture
def reorganised() -> Chain:
    chain = Chain(blocks=60)
    chain.reorg(8)
    return chain


def alerts_of(chain: Chain, start: int, end: int) -> list[dict[str, Any]]:
    """As the table holds them, of the canonical chain."""
    rows = []
    for number in range(start, end + 1):
        for key, amount in large_transfers(chain, number, number).items():
            rows.append(
                {
                    "dedupe_key": key,
                    "severity": "critical" if amount >= 10**21 else "warning",
                    "block_number": number,
                    "block_hash": chain.block(number).hash,
                    "payload": json.dumps({"amount": str(amount)}),
                }
            )
    return rows


def test_an_alert_of_a_block_that_a_reorg_took_away_is_no_false_one(reorganised: Chain) -> None:
    before = alerts_of(Chain(blocks=60), 40, 60)
    now = alerts_of(reorganised, 40, 61)
    rows = list({row["dedupe_key"]: row for row in [*now, *before]}.values())
    found = judged(rows, [], reorganised, 40, 61)
    assert (found.missing, found.false) == (0, [])
    assert found.orphaned == len({row["dedupe_key"] for row in before} - {row["dedupe_key"] for row in now}) > 0


def test_an_alert_that_no_block_ever_held_is_false_whatever_it_says_of_itself(reorganised: Chain) -> None:
    rows = alerts_of(reorganised, 40, 61)
    true = rows[0]
    made_up = [
        {**true, "dedupe_key": "of a block of the chain, which has no such transfer"},
        {**true, "dedupe_key": "of a block that never was", "block_hash": "0x" + "ab" * 32},
    ]
    found = judged([*rows, *made_up], [("1", "sent and never raised")], reorganised, 40, 61)
    assert found.orphaned == 0
    assert sorted(found.false) == sorted([*(row["dedupe_key"] for row in made_up), "sent and never raised"])
    wrong = [{**true, "payload": json.dumps({"amount": "1"})}, *rows[1:]]
    assert judged(wrong, [], reorganised, 40, 61).false == [true["dedupe_key"]]


def test_the_demo_ignores_the_settings_of_its_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACE_STATE__DSN", "postgresql://production/state")
    with nobodys_settings():
        assert not [name for name in os.environ if name.startswith("TRACE_")]
    assert os.environ["TRACE_STATE__DSN"] == "postgresql://production/state"
