"""Whatever follows, reorganises, compacts and sweeps, and whenever a commit was pinned: a reader sees every block once,
as it is now, or gets the error that its commit is too old.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from tests.support.spark.hot_tables import chain, hot_table, rows_of
from tracelake.data.hot.sweep import mark_compacted, sweep
from tracelake.data.hot.tables import ensure
from tracelake.data.hot.view import HeldSnapshot, HotView, view_of
from tracelake.data.hot.writer import BlockMark, rewrite
from tracelake.errors import SnapshotTooOld
from tracelake.store.migrate import Database

Row = tuple[int, int, int]
FAR = 1_000


@dataclass
class Compaction:
    """Under way: what it read, and when."""

    start: int
    stop: int
    up_to_seq: int
    rows: list[Row]
    commit: int | None = None


class SeamMachine(RuleBasedStateMachine):
    dsn = ""

    def __init__(self) -> None:
        super().__init__()
        self.connection = psycopg.connect(self.dsn, autocommit=True)
        self.table = hot_table()
        ensure(self.connection, self.table)
        self.blocks: list[BlockMark] = []
        self.truth: dict[int, list[Row]] = {}
        self.cold: list[list[Row]] = [[]]
        """The current Parquet rows at each commit."""
        self.compaction: Compaction | None = None
        self.swept: set[int] = set()
        """Commits of which something was swept."""
        self.written = 0

    def teardown(self) -> None:
        self.connection.close()

    @rule(counts=st.lists(st.integers(0, 2), min_size=1, max_size=6))
    def follow(self, counts: list[int]) -> None:
        self.write(len(self.blocks), counts, None)

    @precondition(lambda self: self.blocks)
    @rule(depth=st.integers(1, 12), counts=st.lists(st.integers(0, 2), max_size=8))
    def reorganise(self, depth: int, counts: list[int]) -> None:
        first = max(0, len(self.blocks) - depth)
        self.write(first, counts, first)

    @precondition(lambda self: self.blocks)
    @rule(place=st.integers(0, 40), count=st.integers(0, 2))
    def rewrite_block(self, place: int, count: int) -> None:
        number = place % len(self.blocks)
        rows = self.rows(number, [count])
        rewrite(self.connection, {self.table: rows_of(rows)}, [self.blocks[number]])
        self.truth[number] = rows

    @precondition(lambda self: self.compaction is None and self.blocks)
    @rule(start=st.integers(0, 30), length=st.integers(1, 12))
    def begin_to_compact(self, start: int, length: int) -> None:
        start %= len(self.blocks)
        latest = len(self.cold) - 1
        view, rows = self.read(latest, start, start + length)
        self.compaction = Compaction(start, start + length, view.up_to_seq, rows)

    @precondition(lambda self: self.compaction is not None and self.compaction.commit is None)
    @rule()
    def commit_it(self) -> None:
        done = self.compaction
        assert done is not None
        others = [row for row in self.cold[-1] if not done.start <= row[0] < done.stop]
        self.cold.append(others + done.rows)
        done.commit = len(self.cold) - 1

    @precondition(lambda self: self.compaction is not None and self.compaction.commit is not None)
    @rule(dies=st.booleans())
    def mark_it(self, dies: bool) -> None:
        done, self.compaction = self.compaction, None
        assert done is not None
        if not dies and done.commit is not None:
            values = {"start": done.start, "stop": done.stop, "up_to_seq": done.up_to_seq, "commit": done.commit}
            mark_compacted(self.connection, self.table, **values)
            assert mark_compacted(self.connection, self.table, **values) == 0

    @precondition(lambda self: self.compaction is None and self.blocks)
    @rule(
        start=st.integers(0, 30),
        length=st.integers(1, 12),
        depths=st.tuples(st.integers(0, 9), st.integers(0, 9)),
        counts=st.lists(st.integers(0, 2), max_size=8),
        sweeps=st.booleans(),
    )
    def compact_disturbed(
        self, start: int, length: int, depths: tuple[int, int], counts: list[int], sweeps: bool
    ) -> None:
        """From end to end, with a reorg after the reading or after the commit, or none."""
        self.begin_to_compact(start, length)
        if depths[0]:
            self.reorganise(depths[0], counts)
        self.commit_it()
        if depths[1] and self.blocks:
            self.reorganise(depths[1], counts)
        self.mark_it(dies=False)
        if sweeps:
            self.sweep_all()

    @rule()
    def sweep_all(self) -> None:
        marks = "SELECT DISTINCT compacted_in FROM trace_meta.hot_blocks WHERE dataset_version = %s"
        found = self.connection.execute(marks, (self.table.dataset_version,)).fetchall()
        sweep(self.connection, self.table, timedelta(0))
        self.swept |= {commit for (commit,) in found if commit is not None}

    @invariant()
    def every_reader_sees_every_block_once_as_it_is_now(self) -> None:
        is_so = sorted(row for rows in self.truth.values() for row in rows)
        for commit in range(len(self.cold)):
            try:
                _, seen = self.read(commit, 0, FAR)
            except SnapshotTooOld:
                assert any(swept > commit for swept in self.swept), "nothing was swept that it needs"
                continue
            assert sorted(seen) == is_so, f"at commit {commit}"

    @invariant()
    def rows_without_a_mark_do_not_stay(self) -> None:
        left = f"""SELECT count(*) FROM hot.{self.table.name} r WHERE NOT EXISTS (
            SELECT FROM trace_meta.hot_blocks b WHERE b.dataset_version = %s AND b.number = r.block_number)"""  # noqa: S608
        assert self.connection.execute(left.encode(), (self.table.dataset_version,)).fetchone() == (0,)

    def write(self, first: int, counts: list[int], replace_from: int | None) -> None:
        self.written += 1
        parent = self.blocks[first - 1].hash if first else b"genesis"
        blocks = chain(first, len(counts), f"branch {self.written}", parent)
        rows = self.rows(first, counts)
        rewrite(self.connection, {self.table: rows_of(rows)}, blocks, replace_from)
        self.blocks[first:] = blocks
        self.truth = {number: old for number, old in self.truth.items() if number < first}
        self.truth |= {block.number: [row for row in rows if row[0] == block.number] for block in blocks}

    def rows(self, first: int, counts: list[int]) -> list[Row]:
        """With contents that were never there before."""
        self.written += 1
        return [(first + step, place, self.written) for step, count in enumerate(counts) for place in range(count)]

    def read(self, commit: int, start: int, stop: int) -> tuple[HotView, list[Row]]:
        """As `read_with_cold` does it, without Spark."""
        with self.connection.transaction():
            self.connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            held = HeldSnapshot(self.connection, "")
            view = view_of(held, self.table, start=start, stop=stop, commit=commit)
            rows: list[Row] = []
            for run in view.runs:
                sql = f"SELECT * FROM hot.{self.table.name} WHERE block_number >= %s AND block_number < %s"  # noqa: S608
                rows += self.connection.execute(sql.encode(), (run.start, run.stop)).fetchall()
        taken = [*view.runs, *([view.gone] if view.gone else [])]
        rows += [
            row
            for row in self.cold[commit]
            if start <= row[0] < stop and not any(run.start <= row[0] < run.stop for run in taken)
        ]
        return view, rows


@pytest.fixture
def machine(clone: Callable[[Database], str]) -> Any:
    SeamMachine.dsn = clone("data")
    return SeamMachine


def test_every_reader_sees_every_block_once_and_never_a_stale_one(machine: Any) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=60,
            stateful_step_count=25,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
